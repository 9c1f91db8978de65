"""The bugs that are planted, each with what is to find it.

Each breaks one of the invariants of docs/design/overview.md.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ENGINE = Path("crates/engine/src")


@dataclass(frozen=True)
class Finder:
    """What is to find bugs in the sources under a folder."""

    folder: Path
    # What a failure says, with a number, if it does.
    failure: str
    command: tuple[str, ...]


def cargo(package: str, *test: str) -> tuple[str, ...]:
    """Runs tests of a crate."""
    return ("cargo", "test", "--release", "-q", "-p", package, *test)


SIMULATION = Finder(
    ENGINE,
    r"seed (\d+) failed",
    cargo("sumpter-engine", "--test", "sim", "--", "--nocapture"),
)
PARTS = Finder(ENGINE, r"([1-9]\d*) failed", cargo("sumpter-engine", "--lib"))
LANE = Finder(ENGINE, r"([1-9]\d*) failed", cargo("sumpter-engine", "--test", "lane"))
REGISTRY = Finder(
    Path("crates/membership/src/registry"),
    r"property::\w+ --- FAILED",
    cargo("sumpter-membership", "--lib", "property"),
)
FABRIC = Finder(
    Path("crates/fabric/src"),
    r"([1-9]\d*) failed",
    cargo("sumpter-fabric", "--test", "stream"),
)
FAKED = Finder(FABRIC.folder, FABRIC.failure, cargo("sumpter-fabric", "--test", "faked"))
SIMULATED_FABRIC = Finder(FABRIC.folder, SIMULATION.failure, SIMULATION.command)
PLACED = Finder(
    Path("crates/transport/src"),
    r"([1-9]\d*) failed",
    cargo("sumpter-transport", "--test", "conformance", "--", "fabric_", "placed::"),
)
LOOPS = Finder(
    Path("crates/node/src/event_loop"),
    r"([1-9]\d*) failed",
    cargo("sumpter-node", "--lib", "event_loop::"),
)
PLACED_JOBS = Finder(
    LOOPS.folder,
    r"([1-9]\d*) failed",
    cargo("sumpter-node", "--test", "job", "--", "fabric::"),
)
ELASTIC = Finder(
    Path("python/sumpter/torch"),
    r"([1-9]\d*) failed",
    (sys.executable, "-m", "pytest", "-q", "tests/python/torch/test_elastic.py", "-k", "codec"),
)


@dataclass(frozen=True)
class Mutant:
    """A bug: in one file, this text becomes that."""

    name: str
    invariant: str
    file: str
    sound: str
    broken: str
    finder: Finder = SIMULATION


MUTANTS = [
    Mutant(
        "a chunk that was sent again counts twice",
        "1: exactly once",
        "lane/partition.rs",
        "received if chunk < received => Ok((place, Expect::Duplicate)),",
        "received if chunk < received => Ok((place, Expect::Fresh)),",
    ),
    Mutant(
        "half a chunk counts after a cut",
        "1: exactly once",
        "lane/partition.rs",
        "let all_in = slot.children[child].received == spec.chunks();",
        "let all_in = true; slot.children[child].received += u32::from(chunk_is_odd(place));",
    ),
    Mutant(
        "what somebody has is summed again",
        "1: exactly once",
        "recovery.rs",
        "let able: Vec<_> = holders.iter().filter(able)",
        "let able: Vec<_> = holders.iter().filter(able).take(0)",
    ),
    Mutant(
        "a tensor that has failed on some worker is repaired",
        "3: a killed server loses nothing",
        "recovery.rs",
        ".any(|standing| standing.has_failed)",
        ".any(|_| false)",
    ),
    Mutant(
        "a contribution is overwritten while its result arrives",
        "3: a killed server loses nothing",
        "client/receiving.rs",
        "let apart = retains || mirrors || op.coding(part).is_some();",
        "let apart = mirrors || (retains && of.chunk > 0);",
    ),
    Mutant(
        "results are not kept for others",
        "3: a killed server loses nothing",
        "client/retained.rs",
        "all.into_values().flat_map(|known| known.chunks).collect()",
        "all.into_values().take(0).flat_map(|known| known.chunks).collect()",
    ),
    Mutant(
        "the results of a worker's own lane are forgotten",
        "3: a killed server loses nothing",
        "lane/partition.rs",
        "let finished = slot.chunks.iter_mut().zip(0..slot.finished);",
        "let finished = slot.chunks.iter_mut().zip(0..slot.finished.min(1));",
    ),
    Mutant(
        "who receives nothing forgets too soon",
        "3: a killed server loses nothing",
        "lane/sending.rs",
        "!job.keeps || job.partition(at).is_released(slot)",
        "!job.keeps || job.partition(at).is_complete(slot)",
    ),
    Mutant(
        "a worker claims a chunk more than it has",
        "3: a killed server loses nothing",
        "client/op.rs",
        "let have = place.bytes.min(part.have as usize * chunk_bytes);",
        "let have = place.bytes.min((part.have as usize + 1) * chunk_bytes);",
    ),
    Mutant(
        "an average is passed on for the sum",
        "2: the same bytes everywhere",
        "client/operations.rs",
        "if let Some(divisor) = op.request.divisor(chunk.contributors) {",
        "if let Some(divisor) = op.request.divisor(chunk.contributors)"
        ".filter(|_| chunk.origin > 0) {",
    ),
    Mutant(
        "what is passed on is divided by the number of those who live now",
        "5: survivors of a worker agree",
        "recovery.rs",
        "out.relays.push(Relay { span, holder, contributors, members });",
        "let contributors = contributors.min(standings.len() as u32);"
        " out.relays.push(Relay { span, holder, contributors, members });",
    ),
    Mutant(
        "only who passes a result on holds it",
        "5: survivors of a worker agree",
        "recovery.rs",
        "wanted.contains(key) || retained.contains(key)",
        "wanted.contains(key)",
    ),
    Mutant(
        "a broadcast is passed on by a worker that may die",
        "5: survivors of a worker agree",
        "recovery.rs",
        "*collective == Collective::AllReduce || !workers_may_fail;",
        "*collective == Collective::AllReduce || !workers_may_fail || bytes > &0;",
    ),
    Mutant(
        "contributions are added as they come",
        "2: the same bytes everywhere, and in every run",
        "lane/partition.rs",
        "if is_ordered(&spec) && contributors > 1 {",
        "if is_ordered(&spec) && contributors > 99 {",
    ),
    Mutant(
        "a hub begins with the wrong round",
        "4: servers join and leave",
        "recovery.rs",
        "(None, Some(repair)) => repair.round.next(),",
        "(None, Some(repair)) => repair.round,",
    ),
    Mutant(
        "a hub ignores that some have gone on to the next broadcast",
        "4: servers join and leave",
        "recovery.rs",
        "match (layout.repaired.first(), repairs.last()) {",
        "match (layout.repaired.first(), repairs.first()) {",
    ),
    Mutant(
        "a hub receives a broadcast before all of its machine have begun",
        "3: a killed server loses nothing",
        "lane/partition.rs",
        "let wants_total = self.contributors == 0 && slot.begun == self.members.len();",
        "let wants_total = self.contributors == 0 && slot.begun == 1;",
    ),
    Mutant(
        "a machine's subtotal is taken for the result of a reduce",
        "2: the same bytes everywhere",
        "lane/partition.rs",
        "        self.receivers == 0\n",
        "        self.receivers == 99\n",
    ),
    Mutant(
        "the root of a reduce lets its machine go before it has the total",
        "5: survivors of a worker agree",
        "lane/sending.rs",
        "        !job.keeps || job.partition(at).is_released(slot)\n",
        "        let state = job.partition(at);\n"
        "        !job.keeps || state.is_released(slot)\n"
        "            || job.key(at).tier == sumpter_wire::Tier::Machine"
        " && state.is_complete(slot)\n",
    ),
    Mutant(
        "a rack's hub does not wait for its rack",
        "5: survivors of a worker agree",
        "lane/receiving.rs",
        "let of_aggregate = header.tier.is_aggregate() && job.keeps;",
        "let of_aggregate = header.tier == Tier::Machine && job.keeps;",
    ),
    Mutant(
        "a rack's hub acknowledges a total to another tier than it came from",
        "4: servers join and leave",
        "hub.rs",
        "let of = (tensor, *to);",
        "let of = (tensor, if to == to { Tier::Root } else { *to });",
    ),
    Mutant(
        "a server passes a subtotal on to the lane before the one that its route says",
        "1: exactly once",
        "hub.rs",
        "let next = ConnId(next as usize);",
        "let next = ConnId((next as usize).saturating_sub(of.partition as usize % 2));",
    ),
    Mutant(
        "a server counts the rounds of a partition from zero in every epoch",
        "4: servers join and leave",
        "hub.rs",
        "client.register_alone(of.tensor, to, place, of.round);",
        "client.register_alone(of.tensor, to, place, Round(0));",
    ),
    Mutant(
        "the hub of a rack goes on with the round of the epoch before",
        "4: servers join and leave",
        "client/operations.rs",
        "self.own_tier(*tensor) != Some(*tier);",
        "self.own_tier(*tensor) != Some(*tier) && *tier != Tier::Rack;",
    ),
    Mutant(
        "the receivers of a broadcast that have gone on are waited for",
        "4: servers join and leave",
        "recovery.rs",
        "let all = (first..=last).map(",
        "let all = (first..=first).map(",
    ),
    Mutant(
        "operations stay where they were",
        "4: servers join and leave",
        "client/operations.rs",
        "op.move_to(tier, &layout);",
        "op.move_to(tier, &Layout { places: op.places.clone(), ..Layout::default() });",
    ),
    Mutant(
        "what a device has not computed is sent",
        "1: exactly once",
        "client/op.rs",
        "let ready = !self.parts[part].offered && self.unsupplied(part, rank) == 0;",
        "let ready = !self.parts[part].offered;",
    ),
    Mutant(
        "what was supplied is forgotten with the epoch",
        "4: servers join and leave",
        "client/op.rs",
        "        self.request.tier = tier;\n",
        "        self.request.tier = tier; self.supplied = Spans::default();\n",
    ),
    Mutant(
        "what is restored of a result is not reported",
        "3: a killed server loses nothing",
        "client/mod.rs",
        "if self.operations[op].request.supply == Supply::Ranges {",
        "if self.operations[op].request.supply == Supply::Chunks {",
    ),
    Mutant(
        "a round of a variable is applied twice",
        "1: exactly once",
        "recovery.rs",
        "    has_it.then_some(first)",
        "    has_it.then_some(first).filter(|_| span.start % 128 == 0)",
    ),
    Mutant(
        "a mirror lags: a worker lets go before the mirror has the gradient",
        "3: a killed server loses nothing",
        "client/op.rs",
        "mirrors.next().is_none() || alone || state.settled",
        "mirrors.next().is_none() || alone || state.have > 0",
    ),
    Mutant(
        "a mirror says that it has a gradient before it has",
        "3: a killed server loses nothing",
        "lane/partition.rs",
        "by_mirrors: is_mirror && self.is_mirrored(at)",
        "by_mirrors: self.spec.variable.is_some() && self.slots[at].acknowledged == 1",
    ),
    Mutant(
        "a slot is reset when the epoch changes",
        "3: a killed server loses nothing",
        "recovery.rs",
        "                bytes.extend_from_slice(held[part]);",
        "                bytes.extend(held[part].iter().map(|b| *b * u8::from(part != 1)));",
    ),
    Mutant(
        "a new mirror takes part before it has the state",
        "3: a killed server loses nothing",
        "client/mirror.rs",
        "let lacks = |mirror: &Mirror| !mirror.lacking.missing.iter().all(Spans::is_empty);",
        "let lacks = |mirror: &Mirror| mirror.lacking.missing.len() > 9;",
    ),
    Mutant(
        "a new mirror forgets that the state has the interrupted round",
        "1: exactly once",
        "client/mirror.rs",
        "            if let Some(round) = round {\n",
        "            if let Some(round) = round.filter(|round| round.0 > 99) {\n",
    ),
    Mutant(
        "a worker that mirrors a stretch no longer says that it does",
        "3: a killed server loses nothing",
        "client/mirror.rs",
        "        mirror.held = held;\n",
        "        held.iter().for_each(|span| mirror.held.insert(span));\n",
    ),
    Mutant(
        "a new mirror's acknowledgement is lost with its connection",
        "6: every operation ends",
        "client/receiving.rs",
        "        if mirrors || op.request.tier.part().is_some() {\n",
        "        if mirrors {\n",
    ),
    Mutant(
        "a mirror keeps the gradient for the value",
        "2: the same bytes everywhere",
        "client/mirror.rs",
        "            weights.copy_from_slice(parts[0]);",
        "            weights.copy_from_slice(gradient);",
    ),
    Mutant(
        "gradients of a variable are added in the order of arrival",
        "2: the same bytes everywhere",
        "lane/accumulate.rs",
        "    spec.deterministic || spec.variable.is_some()",
        "    spec.deterministic",
    ),
    Mutant(
        "the acknowledgement of a mirror is lost with its connection",
        "3: a killed server loses nothing",
        "client/receiving.rs",
        "            self.retained.remember(key, lane, op.round);",
        "            let _ = (key, lane, op.round);",
    ),
    Mutant(
        "what a mirror has made for its machine is forgotten",
        "1: exactly once",
        "client/mod.rs",
        "                    op.done.insert(bytes);",
        "                    let _ = bytes;",
    ),
    Mutant(
        "an interrupted round changes the beginning of its partition",
        "2: the same bytes everywhere",
        "lane/partition.rs",
        "let offset = spec.variable.map_or(0, |variable| variable.offset as usize);",
        "let offset = 0;",
    ),
    Mutant(
        "a worker's round is done before its mirrors have what it got",
        "3: a killed server loses nothing",
        "lane/partition.rs",
        "mirrors.clone().all(|mirror| state.is_mirrored(unit, mirror, chunk.version))",
        "mirrors.clone().all(|mirror| state.is_mirrored(unit, mirror, chunk.version.min(1)))",
    ),
    Mutant(
        "a delta that a mirror had counts again in the next epoch",
        "1: exactly once",
        "client/mirror.rs",
        "        mirror.clocks.set(elements, clocks);\n",
        "        mirror.clocks.complete(elements, &clocks);\n",
    ),
    Mutant(
        "the clocks of a hand-over are those of the first stretch",
        "1: exactly once",
        "client/sending.rs",
        "for (part, clocks) in self.mirrors.clocks(tensor, &elements) {",
        "for (part, clocks) in self.mirrors.clocks(tensor, &elements).into_iter().take(1) {\n"
        "            let part = part.start..elements.end;",
    ),
    Mutant(
        "a delta is lost if a part of its chunk has it",
        "1: exactly once",
        "lane/state.rs",
        "for part in &fresh {",
        "for part in fresh.iter().filter(|part| **part == stretch) {",
    ),
    Mutant(
        "a round that is done again gets another position",
        "order: positions explain every value",
        "clocks.rs",
        ".then(|| clocks[at].position)",
        ".then(|| rounds_in(clocks))",
    ),
    Mutant(
        "a hand-over forgets the positions",
        "order: positions explain every value",
        "client/sending.rs",
        "for (part, clocks) in self.mirrors.clocks(tensor, &elements) {",
        "for (part, mut clocks) in self.mirrors.clocks(tensor, &elements) {\n"
        "            clocks.iter_mut().for_each(|clock| clock.position = 0);",
    ),
    Mutant(
        "a replayed round does not wait for its turn",
        "order: a replay gives the same bytes",
        "lane/order.rs",
        "if rounds == turn.position || ",
        "if rounds != turn.position || ",
    ),
    Mutant(
        "what is added in a replay overtakes an answer",
        "order: a replay gives the same bytes",
        "lane/asynchronous.rs",
        "self.catch_up(job, user, CatchUp::Answers)",
        "self.catch_up(job, user, CatchUp::All)",
    ),
    Mutant(
        "a worker runs one round too far ahead",
        "staleness: every worker is at most the bound behind",
        "lane/slot.rs",
        "let awaited = variable.staleness.awaited(round);",
        "let awaited = variable.staleness.awaited(round).saturating_sub(1);",
    ),
    Mutant(
        "a mirror acknowledges a snapshot that it does not take",
        "3: a killed server loses nothing",
        "client/mirror.rs",
        "part[bytes.clone()].copy_from_slice(new);",
        "if part[0] != new[0] { part[bytes.clone()].copy_from_slice(new) }",
    ),
    Mutant(
        "a mirror takes what it got in its own round for the value that came after",
        "3: a killed server loses nothing",
        "lane/partition.rs",
        "let is_value = answer.is_some_and(|answer| **answer == *value);",
        "let is_value = answer.is_some_and(|answer| answer.len() == value.len());",
    ),
    Mutant(
        "a mirror is to have what it got over a connection that was cut",
        "progress",
        "lane/partition.rs",
        "begun && chunk < slot.finished && is_value",
        "child.is_some() && chunk < slot.finished && is_value",
    ),
    Mutant(
        "a snapshot that a cut connection lost is not sent again",
        "progress",
        "lane/mod.rs",
        "        self.send_snapshots_again(id);\n",
        "",
    ),
    Mutant(
        "a round that is skipped changes a slot",
        "2: the same bytes everywhere",
        "lane/accumulate.rs",
        "        state.apply(update, master, &stretch, (dtype, gradient), weights);",
        "        let skips = update.action == sumpter_types::Action::Skip;\n"
        "        let step = if skips { 0.0 } else { update.step };\n"
        "        let action = sumpter_types::Action::Apply;\n"
        "        let update = &Update { action, step, ..*update };\n"
        "        state.apply(update, master, &stretch, (dtype, gradient), weights);",
    ),
    Mutant(
        "coefficients that were decided late are applied twice",
        "1: exactly once",
        "client/receiving.rs",
        "        let mirrored = self.mirrors.apply(",
        "        if update.scale < 0.3 {\n"
        "            let weights = &mut weights[..];\n"
        "            self.mirrors.apply((tensor, round), first, &update, gradient, weights);\n"
        "        }\n"
        "        let mirrored = self.mirrors.apply(",
    ),
    Mutant(
        "a norm lacks a contribution",
        "2: the same bytes everywhere",
        "lane/decision.rs",
        "            && chunk.is_summed(contributors)\n",
        "            && (chunk.is_summed(contributors) || chunk.is_summed(contributors - 1))\n",
    ),
    Mutant(
        "the norm of a partition counts twice after a cut",
        "1: exactly once",
        "client/op.rs",
        "        if std::mem::replace(&mut self.parts[part].normed, true) {",
        "        if std::mem::replace(&mut self.parts[part].normed, true) && norm.left == 0 {",
    ),
    Mutant(
        "a round is applied before all ranks have decided",
        "2: the same bytes everywhere",
        "lane/decision.rs",
        "        self.update.filter(|_| self.decided == self.said.len())",
        "        self.update.filter(|_| self.decided > 0)",
    ),
    Mutant(
        "a decision is forgotten when the epoch changes",
        "1: exactly once",
        "client/op.rs",
        "            (norm.sum, norm.left) = (ExactSum::default(), self.parts.len());",
        "            (norm.sum, norm.left) = (ExactSum::default(), self.parts.len());\n"
        "            let decided = self.request.update.filter(|_| norm.is_told);\n"
        "            self.request.update =\n"
        "                decided.map(|u| Update::defer(u.rule)).or(self.request.update);",
    ),
    Mutant(
        "what is encoded again after a cut has part of its result in it",
        "1: exactly once",
        "client/receiving.rs",
        "let apart = retains || mirrors || op.coding(part).is_some();",
        "let apart = retains || mirrors || op.decodes(part);",
    ),
    Mutant(
        "what a round leaves out is not kept",
        "1: exactly once",
        "client/residuals.rs",
        "        std::mem::swap(now, next);",
        "        let _ = (now, next);",
    ),
    Mutant(
        "what was encoded in vain is left out of the next round as well",
        "1: exactly once",
        "client/residuals.rs",
        "            kept.encoded.remove(within.clone());\n"
        "            kept.flushed.remove(within);",
        "            kept.flushed.remove(within);",
    ),
    Mutant(
        "a hub adds what it has left out twice",
        "1: exactly once",
        "client/sending.rs",
        "            && !self.operations.encodes(tensor, place.number, op.round)\n",
        "",
    ),
    Mutant(
        "a sum is decoded as another part of the tensor",
        "2: the same bytes everywhere",
        "client/receiving.rs",
        "        let origin = place.origin + offset - place.offset;\n        let Some(coding)",
        "        let origin = place.origin;\n        let Some(coding)",
    ),
    Mutant(
        "a sum is sent before its carrier has it",
        "1: exactly once",
        "lane/coded.rs",
        "&& self.slots[slot].mirrored == 0",
        "&& self.slots[slot].mirrored > 9",
    ),
    Mutant(
        "a carrier adds codes in another order than the lane",
        "2: the same bytes everywhere",
        "lane/accumulate.rs",
        "all[before * bytes.len()..]",
        "all[(contributors - 1 - before) * bytes.len()..]",
    ),
    Mutant(
        "a carrier does not hold what it has for others",
        "3: a killed server loses nothing",
        "client/receiving.rs",
        "if carries.is_some() || self.links[lane].retains {",
        "if self.links[lane].retains {",
    ),
    Mutant(
        "what the code of a sum leaves out is not kept",
        "1: exactly once",
        "client/residuals.rs",
        "let all = f32::from_ne_bytes(*left) + lost;",
        "let all = f32::from_ne_bytes(*left) + 0.0 * lost;",
    ),
    Mutant(
        "a worker that holds no shard is done before its group has reduced",
        "6: every operation ends",
        "client/mod.rs",
        "let is_over = partitions == 0 && !op.awaits_supply(self.settings.rank);",
        "let is_over = partitions == 0;",
    ),
    Mutant(
        "a shard is passed on to a worker that does not hold it",
        "1: exactly once",
        "recovery.rs",
        "receivers.iter().filter(|(rank, _)| members.contains(rank));",
        "receivers.iter();",
    ),
    Mutant(
        "a shard is summed again without one of its holders",
        "1: exactly once",
        "recovery.rs",
        "out.sums.push((span, members.to_vec()));",
        "out.sums.push((span, members[..members.len().max(2) - 1].to_vec()));",
    ),
    Mutant(
        "stretches of repairs cross the ends of shards",
        "4: servers join and leave",
        "recovery.rs",
        "shards.iter().flat_map(|(held, _)| [held.start, held.end])",
        "shards.iter().take(0).flat_map(|(held, _)| [held.start, held.end])",
    ),
    Mutant(
        "what is restored of a shard goes where the whole tensor has it",
        "2: the same bytes everywhere",
        "client/operations.rs",
        "let within = chunk.origin - start..chunk.origin - start + chunk.len;",
        "let within = chunk.origin.min(start)..chunk.origin.min(start) + chunk.len;",
    ),
    Mutant(
        "a chunk that is summed in place is not counted as received",
        "1: exactly once",
        "resident.rs",
        "                    client.take(on_client, chunk, len, None)?;",
        "                    let _ = len;",
    ),
    Mutant(
        "what a codec has left out is dropped when another one follows",
        "1: exactly once",
        "client/residuals.rs",
        "codec.encode(at, (dtype, &whole), Previous",
        "codec.encode(at, x, Previous",
    ),
    Mutant(
        "what a codec has left out counts twice when another one follows",
        "1: exactly once",
        "client/residuals.rs",
        "        kept.flushed.insert(within.clone());",
        "",
    ),
    Mutant(
        "a hub begins a round of a tensor that has failed",
        "6: every operation ends",
        "hub.rs",
        "if client.has_failed((of.tensor, passage.to, alone)) {",
        "if false {",
        PARTS,
    ),
    Mutant(
        "what overwrites a contribution that is sent again is left out of it",
        "1: exactly once",
        "client/residuals.rs",
        "let is_first = !kept.flushed.contains(&within);",
        "let is_first = true;",
        PARTS,
    ),
    Mutant(
        "what waits for a late rank has no bound",
        "8: every queue has a limit",
        "lane/job.rs",
        "if progress.held <= progress.released || self.held",
        "if true || self.held",
        LANE,
    ),
    Mutant(
        "what waited of a tensor that has failed stays counted",
        "8: every queue has a limit",
        "lane/sending.rs",
        "        self.jobs[job].give_back_held(at, &mut self.pool);\n",
        "",
        LANE,
    ),
    Mutant(
        "the plan changes again for a speed of links that is known",
        "7: placement needs no messages",
        "job/run.rs",
        "            && self.view.speeds.link == 0\n",
        "",
        REGISTRY,
    ),
    Mutant(
        "what a worker has left out is dropped when it leaves",
        "1: exactly once",
        "training/gradients.py",
        "summed if kept is None else kept + summed",
        "kept",
        ELASTIC,
    ),
    Mutant(
        "what a worker has left out counts twice when it leaves",
        "1: exactly once",
        "training/gradients.py",
        "            if rank == heirs[0]:",
        "            if rank in heirs:",
        ELASTIC,
    ),
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
# A bug may need a word that the sources lack.
HELPERS = {
    "chunk_is_odd": "fn chunk_is_odd(place: ChunkPlace) -> bool { place.chunk % 2 == 1 }\n",
}
