//! What passes between the threads of a worker, in every interleaving: operations and their ends,
//! commands and the wake-ups that follow them.
//!
//! The sources are compiled once more here, with loom's mutexes, conditions and channels, and a
//! waker that keeps one wake-up, as the kernel's event does. Without libtest, so that their unit
//! tests are not.

use loom::sync;

#[allow(dead_code, unused_imports)]
#[path = "../src/completion.rs"]
mod completion;
#[path = "../src/remote.rs"]
mod remote;

mod error {
    pub(crate) use sumpter_node::OpError;
}

/// What the code relies on of crossbeam's channels: whatever is left in one goes with its receiver,
/// and nothing can be sent after that. Loom's own channels know no end.
mod channel {
    use std::collections::VecDeque;

    use loom::sync::{Arc, Mutex};

    /// The messages, until the receiver is gone.
    type Queue<T> = Arc<Mutex<Option<VecDeque<T>>>>;

    #[derive(Debug)]
    pub(crate) struct Sender<T>(Queue<T>);

    pub(crate) struct Receiver<T>(Queue<T>);

    pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
        let queue = Arc::new(Mutex::new(Some(VecDeque::new())));
        (Sender(queue.clone()), Receiver(queue))
    }

    /// The message that is never received.
    pub(crate) struct SendError<T>(pub T);

    impl<T> Clone for Sender<T> {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }

    impl<T> Sender<T> {
        pub(crate) fn send(&self, message: T) -> Result<(), SendError<T>> {
            match self.0.lock().expect("nobody panics").as_mut() {
                Some(queue) => {
                    queue.push_back(message);
                    Ok(())
                }
                None => Err(SendError(message)),
            }
        }
    }

    impl<T> Receiver<T> {
        pub(crate) fn try_recv(&self) -> Result<T, ()> {
            let mut queue = self.0.lock().expect("nobody panics");
            queue.as_mut().and_then(VecDeque::pop_front).ok_or(())
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            let left = self.0.lock().expect("nobody panics").take();
            // What a message does when it is dropped may take time, or a lock.
            drop(left);
        }
    }
}

mod command {
    use crate::completion::Promise;

    #[derive(Debug)]
    pub(crate) enum Command {
        Submit(Promise),
        Leave,
    }
}

mod waker {
    use loom::sync::Notify;

    #[derive(Debug)]
    pub(crate) struct Waker(pub Notify);

    impl Waker {
        pub(crate) fn wake(&self) -> std::io::Result<()> {
            self.0.notify();
            Ok(())
        }
    }
}

use std::time::{Duration, Instant};

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use channel::{Receiver, unbounded};
use command::Command;
use completion::{Callback, Completion, Promise};
use error::OpError;
use remote::Remote;
use waker::Waker;

/// Loom's waits never time out: a wake-up that is lost is a deadlock, which it reports.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn model(what: &str, body: impl Fn() + Send + Sync + 'static) {
    let mut model = Builder::new();
    // Bugs of this kind show with two or three; without a bound the last model runs for hours.
    model.preemption_bound = Some(3);
    model.check(body);
    println!("every interleaving: {what}");
}

/// A tensor that the loop writes until the operation is done, and its caller reads from then on.
struct Tensor(UnsafeCell<u32>);

fn a_waiting_thread_is_woken_and_sees_the_result() {
    let completion = Completion::new(unbounded().0);
    let tensor = Arc::new(Tensor(UnsafeCell::new(0)));
    let (promise, result) = (Promise::new(completion.clone()), tensor.clone());
    let event_loop = thread::spawn(move || {
        // SAFETY: loom checks that no other thread has access to the cell.
        result.0.with_mut(|cell| unsafe { *cell = 7 });
        promise.finish(Ok(()));
    });
    // SAFETY: as above.
    let read = || tensor.0.with(|cell| unsafe { *cell });
    if completion.poll().is_some() {
        assert_eq!(read(), 7);
    }
    assert_eq!(completion.wait_until(soon()), Some(Ok(())));
    assert_eq!(read(), 7);
    event_loop.join().expect("the loop ends");
}

fn a_callback_runs_once() {
    let (notifier, callbacks) = unbounded::<Callback>();
    let completion = Completion::new(notifier);
    let promise = Promise::new(completion.clone());
    let event_loop = thread::spawn(move || promise.finish(Ok(())));
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    completion.on_done(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    event_loop.join().expect("the loop ends");
    let callback = callbacks.try_recv().expect("a callback was lost");
    callback();
    assert!(callbacks.try_recv().is_err(), "a callback was queued twice");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

fn an_operation_in_parts_ends_once_with_the_last_of_them() {
    let (notifier, callbacks) = unbounded::<Callback>();
    let completion = Completion::new(notifier);
    let tensor = Arc::new([Tensor(UnsafeCell::new(0)), Tensor(UnsafeCell::new(0))]);
    completion.on_done(|| ());
    let promises = Promise::of_parts(&completion, 2);
    let loops = promises.into_iter().enumerate().map(|(part, promise)| {
        let result = tensor.clone();
        thread::spawn(move || {
            // SAFETY: loom checks that no other thread has access to the cell.
            result[part].0.with_mut(|cell| unsafe { *cell = 7 });
            let lost = || Err(OpError::PeerLost("a rank died".into()));
            promise.end(if part == 0 { Ok(()) } else { lost() }).is_some()
        })
    });
    let loops: Vec<_> = loops.collect();
    let outcome = completion.wait_until(soon()).expect("an outcome");
    assert!(matches!(outcome, Err(OpError::PeerLost(_))), "{outcome:?}");
    for part in &*tensor {
        // SAFETY: as above.
        assert_eq!(part.0.with(|cell| unsafe { *cell }), 7);
    }
    let last = loops.into_iter().map(|of| of.join().expect("the loop ends"));
    assert_eq!(last.filter(|last| *last).count(), 1);
    assert!(callbacks.try_recv().is_ok() && callbacks.try_recv().is_err());
}

/// As the loop does with its commands.
fn obey(commands: &Receiver<Command>, waker: &Waker) {
    loop {
        waker.0.wait();
        while let Ok(command) = commands.try_recv() {
            match command {
                Command::Submit(promise) => promise.finish(Ok(())),
                Command::Leave => return,
            }
        }
    }
}

fn an_operation_ends_though_the_loop_may_end_first() {
    let (sender, commands) = unbounded();
    let remote = Remote { sender, waker: Arc::new(Waker(sync::Notify::new())) };
    let waker = remote.waker.clone();
    let event_loop = thread::spawn(move || obey(&commands, &waker));
    let other = remote.clone();
    let leaver = thread::spawn(move || {
        other.send(Command::Leave);
    });
    let completion = Completion::new(unbounded().0);
    if !remote.send(Command::Submit(Promise::new(completion.clone()))) {
        completion.finish(Err(OpError::Closed("the session has been shut down".into())));
    }
    let outcome = completion.wait_until(soon()).expect("an outcome");
    assert!(matches!(outcome, Ok(()) | Err(OpError::Closed(_))), "{outcome:?}");
    leaver.join().expect("it has left");
    event_loop.join().expect("the loop ends");
    assert_eq!(completion.poll(), Some(outcome), "an outcome has changed");
}

fn main() {
    model(
        "a waiting thread is woken and sees the result",
        a_waiting_thread_is_woken_and_sees_the_result,
    );
    model("a callback runs once", a_callback_runs_once);
    model(
        "an operation in parts ends once, with the last of them",
        an_operation_in_parts_ends_once_with_the_last_of_them,
    );
    model(
        "an operation ends though the loop may end first",
        an_operation_ends_though_the_loop_may_end_first,
    );
}
