//! What must hold once all rounds are over.

use super::*;

impl World {
    pub(super) fn check(&mut self) {
        for (index, tensor) in self.tensors.iter().enumerate() {
            if self.lost.contains(&index) {
                continue;
            }
            if !tensor.staleness.is_synchronous() {
                self.report.alone += u64::from(tensor.rounds) * tensor.members.len() as u64;
                self.check_own(index, tensor);
                continue;
            }
            if tensor.codec.is_some() {
                self.report.encoded += u64::from(tensor.rounds) * tensor.members.len() as u64;
            }
            // Where workers die, nothing is left out: results are as of what is not encoded.
            if tensor.codec.is_some() && !self.workers_may_fail {
                self.check_encoded(index, tensor);
                continue;
            }
            for round in 0..tensor.rounds {
                let receives =
                    |r: &&Rank| tensor.request.collective.receives(**r, tensor.request.root);
                let of = |rank: &Rank| &self.workers[rank.0 as usize].results[&(index, round)];
                if !tensor.shards.is_empty() {
                    let joined = tensor.joined(round, |rank| of(&rank));
                    self.compare((tensor, round), &joined, self.spans[&(index, round)]);
                    self.report.shards += tensor.shards.len() as u64;
                    continue;
                }
                let Some(first) = tensor.members.iter().find(receives) else { continue };
                for rank in tensor.members.iter().filter(receives) {
                    let differs = of(rank).iter().zip(of(first)).position(|(a, b)| a != b);
                    assert_eq!(
                        differs, None,
                        "ranks {first} and {rank}, round {round}: {tensor:?}"
                    );
                }
                if tensor.rule().is_none() || !self.workers_may_fail {
                    self.compare((tensor, round), of(first), self.spans[&(index, round)]);
                }
                self.report.operations += tensor.members.len() as u64;
                self.report.updates += u64::from(tensor.rule().is_some());
            }
            if tensor.rule().is_some() && self.workers_may_fail {
                self.check_states(index, tensor);
                continue;
            }
            for rank in &tensor.members {
                self.check_mirror(tensor, *rank);
            }
        }
    }

    /// What each worker got of a variable that changes asynchronously, and what became of it.
    fn check_own(&self, index: usize, tensor: &Tensor) {
        let results = |rank, round| self.result(index, rank, round).clone();
        tensor.check_order(index, &self.orders(), results);
        for rank in &tensor.members {
            let of = |round| &self.workers[rank.0 as usize].results[&(index, round)];
            let results: Vec<_> = (0..tensor.rounds).map(of).collect();
            tensor.check_own(*rank, &results);
            self.check_mirror(tensor, *rank);
        }
    }

    /// Every round of a tensor that is encoded gave the sum of what the contributions decode to,
    /// each once, and what they have left out is kept.
    fn check_encoded(&self, index: usize, tensor: &Tensor) {
        if tensor.is_encoded_by_hubs() {
            return self.check_totals(index, tensor);
        }
        let (sums, residuals) = tensor.encoded_sums();
        for rank in &tensor.members {
            let worker = &self.workers[rank.0 as usize];
            for (round, sum) in (0..).zip(&sums) {
                let got = &worker.results[&(index, round)];
                let differs = got.iter().zip(sum).position(|(a, b)| a != b);
                assert_eq!(differs, None, "rank {rank}, round {round}: {tensor:?}");
            }
            let residual = worker.client.residual(tensor.request.tensor);
            if let Some(residual) = residual {
                assert!(residual == residuals[rank], "the residual of rank {rank}: {tensor:?}");
            }
        }
    }

    /// What workers have contributed in all rounds is in the results, or was left out.
    fn check_totals(&self, index: usize, tensor: &Tensor) {
        let mut left = tensor.contributed();
        let mut take = |values: Vec<f64>| {
            left.iter_mut().zip(values).for_each(|(left, value)| *left -= value);
        };
        for round in 0..tensor.rounds {
            let of = |rank: &Rank| &self.workers[rank.0 as usize].results[&(index, round)];
            let first = of(&tensor.members[0]);
            let alike = tensor.members.iter().all(|rank| of(rank) == first);
            assert!(alike, "round {round}: {tensor:?}");
            take(tensor.values(first));
        }
        for rank in &tensor.members {
            let client = &self.workers[rank.0 as usize].client;
            let residual = client.residual(tensor.request.tensor);
            residual.into_iter().for_each(|of| take(model::decode(Dtype::F32, of)));
        }
        let wrong = left.iter().position(|left| *left != 0.0);
        assert_eq!(wrong, None, "left {:?}: {tensor:?}", wrong.map(|at| left[at]));
    }

    /// What a worker mirrors of a variable is what all rounds have made of it.
    fn check_mirror(&self, tensor: &Tensor, rank: Rank) {
        let Request { tensor: id, dtype, .. } = tensor.request;
        for (span, _) in tensor.mirrored_by(rank) {
            let elements = span.start / dtype.size()..span.end / dtype.size();
            let client = &self.workers[rank.0 as usize].client;
            let mirrored = client.mirrored(id, &elements).expect("it was mirrored from the start");
            let size = dtype.accumulator().size();
            for (part, (got, all)) in
                mirrored.iter().zip(tensor.final_parts(&self.generations[0].1)).enumerate()
            {
                let expected = &all[elements.start * size..elements.end * size];
                let same = *got == expected;
                assert!(same, "part {part} of {elements:?} on rank {rank}: {tensor:?}");
            }
        }
    }

    /// Each element is the result of those who lived at some time while the round lasted. In any
    /// order of addition, if the order shows and is not prescribed.
    fn compare(&self, (tensor, round): (&Tensor, u32), got: &[u8], span: (usize, usize)) {
        let expected = |(living, on): &(BTreeSet<usize>, Machines)| {
            let lives = |rank: &Rank| living.contains(&(rank.0 as usize));
            let members: Vec<Rank> = tensor.everyone.iter().copied().filter(lives).collect();
            tensor.expected(round, (&members, on))
        };
        let possible: Vec<_> = self.generations[span.0..=span.1].iter().map(expected).collect();
        let size = tensor.request.dtype.size();
        for (element, got) in got.chunks_exact(size).enumerate() {
            let right = |expected: &Vec<u8>| {
                let expected = &expected[element * size..][..size];
                let ordered = self.deterministic || tensor.rule().is_some();
                let free = tensor.rough && !ordered;
                got == expected || (free && model::is_close(got, expected))
            };
            let any = possible.iter().any(right);
            assert!(any, "element {element} of round {round}, {span:?}: {tensor:?}");
        }
    }
}
