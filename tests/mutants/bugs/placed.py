"""Bugs of placed writes: their stream, libfabric, links and event loops."""

from __future__ import annotations

from bugs.finders import FABRIC, FAKED, LOOPS, PLACED, PLACED_JOBS, SIMULATED_FABRIC, Mutant

MUTANTS = [
    Mutant(
        "a slot is written to before its last write has completed",
        "bytes that are on their way do not change",
        "stream.rs",
        "may && *free > 0 && !busy[slot]",
        "may && *free > 0",
        FABRIC,
    ),
    Mutant(
        "slots that were read are given back twice",
        "a peer writes to slots that are free",
        "stream.rs",
        "let free = std::mem::take(&mut self.receiving.free);",
        "let free = self.receiving.free;",
        FABRIC,
    ),
    Mutant(
        "a stream ends when the peer says so, not after its last record",
        "the end is reported after every byte before it",
        "stream.rs",
        "self.receiving.end == Some(self.receiving.records as u32 & VALUE)",
        "self.receiving.end.is_some()",
        FABRIC,
    ),
    Mutant(
        "what a network takes in while it posts a write is overlooked",
        "nothing that has arrived waits for another event",
        "fabric.rs",
        "Some(_) => placed.stream.posted() != placed.armed && !placed.arm(),",
        "Some(_) => false,",
        PLACED,
    ),
    Mutant(
        "a wake-up that overtakes its write is forgotten",
        "nothing that has arrived waits for another event",
        "fabric.rs",
        "!stream.is_open() || !stream.is_flushed() || self.is_behind()",
        "!stream.is_open()",
        PLACED,
    ),
    Mutant(
        "a write that the network could not place is taken for placed",
        "1: exactly once",
        "stream.rs",
        "        polled?;\n",
        "        let _ = polled;\n",
        SIMULATED_FABRIC,
    ),
    Mutant(
        "a peer with a descriptor is never told how much was written",
        "6: every operation ends",
        "fabric.rs",
        "self.event_fd.is_none() || asked);",
        "self.event_fd.is_none() || asked && false);",
        PLACED,
    ),
    Mutant(
        "a write that is lost without an error is not missed",
        "6: every operation ends",
        "stream.rs",
        "if ahead < 128 { ahead.into() } else { 0 }",
        "if ahead < 1 { ahead.into() } else { 0 }",
        SIMULATED_FABRIC,
    ),
    Mutant(
        "a library that is loaded keeps the signals that it has taken",
        "4: servers join and leave",
        "libfabric/signals.rs",
        "new.sa_sigaction != old.sa_sigaction",
        "false && new.sa_sigaction != old.sa_sigaction",
        FAKED,
    ),
    Mutant(
        "bytes between ranks of one machine go through the network",
        "bytes over loopback = 0",
        "mod.rs",
        "self.sockets.network.is_some() && run.is_away(lane);",
        "self.sockets.network.is_some();",
        PLACED_JOBS,
    ),
    Mutant(
        "a network that hangs is waited for without end",
        "6: every operation ends",
        "socket.rs",
        "                    true => Verdict::Hangs,",
        "                    true => Verdict::Ask,",
        LOOPS,
    ),
]
