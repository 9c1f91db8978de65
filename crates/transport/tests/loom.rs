//! The ring between two processes, in every interleaving of its writer and its reader: no byte and
//! no wake-up is lost, and no byte is touched by both.
//!
//! The source of the protocol is compiled once more here, with loom's atomics. Without libtest, so
//! that its unit tests are not.

use loom::sync;

#[allow(dead_code, private_interfaces, unused_imports)]
#[path = "../src/shm/positions.rs"]
mod positions;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::{Arc, Notify};
use loom::thread;

use positions::{Positions, Reader, Writer};

const CAPACITY: u64 = 2;
const BYTES: u64 = 3;

struct World {
    shared: Positions,
    ring: [UnsafeCell<u64>; CAPACITY as usize],
    to_reader: Notify,
    to_writer: Notify,
}

impl World {
    fn slot(&self, position: u64) -> &UnsafeCell<u64> {
        &self.ring[(position % CAPACITY) as usize]
    }
}

fn write(world: &World) {
    let mut writer = Writer::new(CAPACITY);
    while writer.position() < BYTES {
        if writer.room(&world.shared, 1).expect("sane") == 0 {
            if writer.sleeps(&world.shared).expect("sane") {
                world.to_writer.wait();
            }
            continue;
        }
        let position = writer.position();
        // SAFETY: loom checks that no other thread has access to the cell.
        world.slot(position).with_mut(|cell| unsafe { *cell = position });
        writer.stage(1);
        if writer.publish(&world.shared) {
            world.to_reader.notify();
        }
    }
    if writer.finish(&world.shared) {
        world.to_reader.notify();
    }
}

fn read(world: &World) {
    let mut reader = Reader::new(CAPACITY);
    loop {
        let finished = Reader::is_finished(&world.shared);
        if reader.available(&world.shared, 1).expect("sane") > 0 {
            let position = reader.position();
            // SAFETY: as above.
            let byte = world.slot(position).with(|cell| unsafe { *cell });
            assert_eq!(byte, position);
            reader.stage(1);
            if reader.release(&world.shared) {
                world.to_writer.notify();
            }
        } else if finished {
            break;
        } else if reader.sleeps(&world.shared).expect("sane") {
            world.to_reader.wait();
        }
    }
    assert_eq!(reader.position(), BYTES, "the end came before a byte");
}

fn main() {
    // Bounded: without, the model runs for hours; bugs of this kind show with two or three.
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = Arc::new(World {
            shared: Positions::default(),
            ring: Default::default(),
            to_reader: Notify::new(),
            to_writer: Notify::new(),
        });
        world.shared.begin();
        let writers = world.clone();
        let writer = thread::spawn(move || write(&writers));
        read(&world);
        writer.join().expect("the writer ends");
    });
    println!("every interleaving of a writer and a reader: no byte and no wake-up is lost");
}
