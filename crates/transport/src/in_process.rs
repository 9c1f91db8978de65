//! The link between a worker and the lane in the same event loop: one copy, no system call.

use sumpter_endpoint::{ConnId, Endpoint, Now, Violation};

/// Moves bytes both ways until nothing more can move or `budget` bytes have. Returns the bytes
/// moved.
///
/// # Errors
/// [`Violation`] from either side: a bug, since both sides are ours.
pub fn in_process(
    (a, on_a): (&mut impl Endpoint, ConnId),
    (b, on_b): (&mut impl Endpoint, ConnId),
    now: Now,
    budget: usize,
) -> Result<usize, Violation> {
    let mut moved = 0;
    while moved < budget {
        let step = one_way(a, on_a, b, on_b, now)? + one_way(b, on_b, a, on_a, now)?;
        if step == 0 {
            break;
        }
        moved += step;
    }
    Ok(moved)
}

fn one_way(
    from: &mut impl Endpoint,
    on_from: ConnId,
    to: &mut impl Endpoint,
    on_to: ConnId,
    now: Now,
) -> Result<usize, Violation> {
    let mut moved = 0;
    {
        let pending = from.pending(on_from);
        let mut source = pending.iter().flat_map(|s| s.chunks(s.len().max(1)));
        let mut rest: &[u8] = source.next().unwrap_or_default();
        for space in &mut to.space(on_to) {
            let mut filled = 0;
            while filled < space.len() && !rest.is_empty() {
                let n = rest.len().min(space.len() - filled);
                space[filled..filled + n].copy_from_slice(&rest[..n]);
                (filled, moved, rest) = (filled + n, moved + n, &rest[n..]);
                if rest.is_empty() {
                    rest = source.next().unwrap_or_default();
                }
            }
        }
    }
    if moved > 0 {
        from.sent(on_from, moved);
        to.filled(on_to, moved, now)?;
    }
    Ok(moved)
}
