//! What the simulated clusters have been through.

use std::fmt;

/// What happened in one or many runs.
#[derive(Debug, Default)]
pub struct Report {
    pub operations: u64,
    pub bytes: u64,
    pub cuts: u64,
    pub half_open: u64,
    /// Connections of which an end died with bytes under way.
    pub cut_short: u64,
    /// Connections that placed bytes, that could not register the memory for that, whose network
    /// failed, whose network hung, and whose network lost a write.
    pub placed: u64,
    pub unregistered: u64,
    pub failures: u64,
    pub hangs: u64,
    pub losses: u64,
    pub duplicates: u64,
    /// Chunks that were passed on for a machine or a rack.
    pub subtotals: u64,
    /// Results of shards, of tensors that device groups have reduced.
    pub shards: u64,
    /// Partitions that a worker was to pass on for its rack.
    pub of_racks: u64,
    /// Helpers that began to pass on subtotals in an epoch, chunks of which they got the total, and
    /// partitions of which they get nothing.
    pub servers: u64,
    pub served: u64,
    pub served_one_way: u64,
    /// Partitions that were passed on for a machine which receives nothing of them.
    pub one_way: u64,
    pub steps: u64,
    /// Changes of epoch, those that interrupted another, and helpers killed.
    pub epochs: u64,
    pub nested: u64,
    pub kills: u64,
    /// Epochs with another size of chunks than the one before.
    pub resized: u64,
    /// Workers killed.
    pub deaths: u64,
    /// Stretches of interrupted rounds that were passed on, and that were summed again.
    pub relays: u64,
    pub sums: u64,
    /// Bits flipped on their way, and frames whose checksum was wrong.
    pub flips: u64,
    pub corrupt: u64,
    /// Ranges of contributions that came while their rounds lasted.
    pub ranges: u64,
    /// Rounds that changed a variable, and parts of variables that mirrors put into lanes.
    pub updates: u64,
    pub fills: u64,
    /// Results of tensors that are encoded.
    pub encoded: u64,
    /// Rounds of one worker alone, and how many of them again in the same order.
    pub alone: u64,
    /// Rounds about which a worker has decided late, and those of them that were skipped.
    pub decided: u64,
    pub skipped: u64,
    pub replayed: u64,
    /// Stretches of variables that got a new mirror, and variables whose mirrors all died.
    pub refills: u64,
    pub lost: u64,
    /// Tensors that failed on some workers before the plan changed.
    pub refused: u64,
}

impl Report {
    pub fn add(&mut self, other: &Report) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.cuts += other.cuts;
        self.half_open += other.half_open;
        self.cut_short += other.cut_short;
        self.placed += other.placed;
        self.unregistered += other.unregistered;
        self.failures += other.failures;
        self.hangs += other.hangs;
        self.losses += other.losses;
        self.duplicates += other.duplicates;
        self.subtotals += other.subtotals;
        self.shards += other.shards;
        self.of_racks += other.of_racks;
        self.servers += other.servers;
        self.served += other.served;
        self.served_one_way += other.served_one_way;
        self.one_way += other.one_way;
        self.steps += other.steps;
        self.epochs += other.epochs;
        self.nested += other.nested;
        self.kills += other.kills;
        self.resized += other.resized;
        self.deaths += other.deaths;
        self.relays += other.relays;
        self.sums += other.sums;
        self.flips += other.flips;
        self.corrupt += other.corrupt;
        self.ranges += other.ranges;
        self.updates += other.updates;
        self.fills += other.fills;
        self.encoded += other.encoded;
        self.alone += other.alone;
        self.decided += other.decided;
        self.skipped += other.skipped;
        self.replayed += other.replayed;
        self.refills += other.refills;
        self.lost += other.lost;
        self.refused += other.refused;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations and {} shards checked, {} bytes carried in {} steps, {} subtotals \
             passed on, {} partitions of racks, and {} partitions without a result; {} helpers \
             passed on {} subtotals, and {} partitions without a result; faults injected: {} \
             connections cut ({} of them half-open, {} with bytes under way of an end that died); \
             {} connections placed bytes, {} could not register memory, the network of {} failed, \
             of {} hung, and of {} lost a write; {} chunks received again; {} changes of epoch \
             ({} of them within another, {} to other sizes), {} helpers and {} workers killed, {} \
             stretches of interrupted rounds passed on and {} summed again; {} bits flipped, {} \
             damaged frames noticed; {} ranges supplied late; {} rounds that changed a variable, \
             and {} of its parts put into lanes; {} results of encoded rounds; {} rounds of one \
             worker alone, {} of them replayed; {} decisions after the norm was known, {} of them \
             to skip the round; {} \
             stretches of variables with a new mirror, {} variables lost with both mirrors; {} \
             tensors that failed",
            self.operations,
            self.shards,
            self.bytes,
            self.steps,
            self.subtotals,
            self.of_racks,
            self.one_way,
            self.servers,
            self.served,
            self.served_one_way,
            self.cuts,
            self.half_open,
            self.cut_short,
            self.placed,
            self.unregistered,
            self.failures,
            self.hangs,
            self.losses,
            self.duplicates,
            self.epochs,
            self.nested,
            self.resized,
            self.kills,
            self.deaths,
            self.relays,
            self.sums,
            self.flips,
            self.corrupt,
            self.ranges,
            self.updates,
            self.fills,
            self.encoded,
            self.alone,
            self.replayed,
            self.decided,
            self.skipped,
            self.refills,
            self.lost,
            self.refused
        )
    }
}
