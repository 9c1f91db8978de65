//! What a cluster costs and what its throughput costs: the rack cost model of PHub (SoCC'18,
//! section 4.9 and Table 5), for GPU machines, CPU machines and links of any price.
//!
//! With a NIC for `N`, a port of the rack's switch for `S`, a cable for `C` and a core network that
//! carries the fraction `F` of what machines can send, a machine's part of the network costs
//!
//! ```text
//! A = (N + S + C) + F (4 S + 2 C)
//! ```
//!
//! and a worker of price `W` with four GPUs of price `G`, as the paper prints it,
//! `W + N + 4 G + A`. PHub adds `K P` for the part `K` of a hub of price `P` that a worker uses.
//!
//! **As printed the NIC is paid for twice**, once beside the worker and once in `A`. Both readings
//! are computed; decisions use the one that pays for it once.

use serde::Serialize;

use crate::PlanError;

/// Prices, in one currency. Machines without their network.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// `W`: a GPU machine without GPUs and NIC.
    pub worker: f64,
    /// `G`: one GPU.
    pub gpu: f64,
    /// GPUs of a machine; the paper has four.
    pub gpus: f64,
    /// `P`: a CPU machine without NIC.
    pub helper: f64,
    /// How many times less than all machines together can send the core network carries: `1/F`.
    pub oversubscription: f64,
    /// What links of each speed cost.
    pub links: Vec<LinkPrice>,
}

/// The price of a machine's connection, by speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkPrice {
    /// Its bandwidth each way.
    pub gbps: f64,
    /// `N`: the NIC.
    pub nic: f64,
    /// `S`: a port of a switch.
    pub switch_port: f64,
    /// `C`: a cable.
    pub cable: f64,
}

impl LinkPrice {
    /// `A = (N + S + C) + F (4 S + 2 C)`.
    ///
    /// ```
    /// use sumpter_plan::LinkPrice;
    ///
    /// let link = LinkPrice { gbps: 100.0, nic: 800.0, switch_port: 600.0, cable: 100.0 };
    /// assert_eq!(link.network(1.0), 1500.0 + 2600.0);
    /// assert_eq!(link.network(2.0), 1500.0 + 1300.0);
    /// ```
    #[must_use]
    pub fn network(&self, oversubscription: f64) -> f64 {
        let above = 4.0 * self.switch_port + 2.0 * self.cable;
        self.nic + self.switch_port + self.cable + above / oversubscription
    }
}

impl Prices {
    /// A GPU machine with its network: `W + G gpus + A`, and with the NIC once more where the
    /// formula is taken `as_printed`.
    #[must_use]
    pub fn worker_price(&self, link: &LinkPrice, as_printed: bool) -> f64 {
        let again = if as_printed { link.nic } else { 0.0 };
        self.worker + self.gpus * self.gpu + link.network(self.oversubscription) + again
    }

    /// A CPU machine with its network: `P + A`.
    #[must_use]
    pub fn helper_price(&self, link: &LinkPrice) -> f64 {
        self.helper + link.network(self.oversubscription)
    }

    /// PHub's cost of a worker that uses the part `hubs` (`K`) of a CPU machine (`P`, with its
    /// network).
    #[must_use]
    pub fn worker_price_with_hubs(&self, link: &LinkPrice, hubs: f64, as_printed: bool) -> f64 {
        self.worker_price(link, as_printed) + hubs * self.helper_price(link)
    }
}

/// A cluster of equal links, what it does and what it costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Offer {
    /// How it differs from the cluster in question.
    pub change: String,
    /// GPU machines.
    pub workers: u32,
    /// CPU machines.
    pub servers: u32,
    /// Bandwidth of every link.
    pub bandwidth_gbps: f64,
    /// Steps of one GPU machine in a second, times GPU machines.
    pub steps_per_s: f64,
    /// The price of all machines with their network.
    pub price: f64,
    /// The same with PHub's formula as printed, which pays for workers' NICs twice.
    pub price_as_printed: f64,
    /// `steps_per_s` for each 1,000 of the price.
    pub steps_per_s_per_1000: f64,
    /// Additional `steps_per_s` for each 1,000 that it costs more than the cluster in question;
    /// none if it costs no more.
    pub gained_per_1000: Option<f64>,
}

/// What other machines and links would bring for their price: the cluster in question first, then
/// one more GPU machine, CPU machines (one, a quarter, half and as many as GPU machines), and the
/// next faster link that has a price, each by itself.
///
/// A step takes as long as the slower of computing and communicating takes, which is a bound: all
/// of communication is hidden that can be. `communicate_s` gives the time of a round for numbers of
/// GPU and CPU machines and a bandwidth.
///
/// # Errors
/// A link speed that has no price.
pub fn offers(
    prices: &Prices,
    (workers, servers): (u32, u32),
    bandwidth_gbps: f64,
    compute_s: f64,
    communicate_s: impl Fn(u32, u32, f64) -> Result<f64, PlanError>,
) -> Result<Vec<Offer>, PlanError> {
    let link = |gbps: f64| prices.links.iter().find(|link| link.gbps == gbps);
    let Some(now) = link(bandwidth_gbps) else {
        let known: Vec<String> = prices.links.iter().map(|link| link.gbps.to_string()).collect();
        let expected = format!("a speed with a price: {} Gb/s", known.join(", "));
        return Err(PlanError::field("bandwidth_gbps", bandwidth_gbps, expected));
    };
    let offer = |change: String, workers: u32, servers: u32, link: &LinkPrice| {
        let step_s = communicate_s(workers, servers, link.gbps)?.max(compute_s);
        let steps_per_s = f64::from(workers) / step_s;
        let total = |as_printed| {
            let hubs = f64::from(servers) / f64::from(workers);
            f64::from(workers) * prices.worker_price_with_hubs(link, hubs, as_printed)
        };
        Ok::<_, PlanError>(Offer {
            change,
            workers,
            servers,
            bandwidth_gbps: link.gbps,
            steps_per_s,
            price: total(false),
            price_as_printed: total(true),
            steps_per_s_per_1000: 1000.0 * steps_per_s / total(false),
            gained_per_1000: None,
        })
    };
    let mut all = vec![offer("as given".to_owned(), workers, servers, now)?];
    all.push(offer("1 more GPU machine".to_owned(), workers + 1, servers, now)?);
    let mut helpers = [1, workers / 4, workers / 2, workers].map(|more| more.max(1)).to_vec();
    helpers.dedup();
    for more in helpers {
        let plural = if more == 1 { "" } else { "s" };
        all.push(offer(format!("{more} more CPU machine{plural}"), workers, servers + more, now)?);
    }
    let faster = prices.links.iter().filter(|link| link.gbps > now.gbps);
    if let Some(link) = faster.min_by(|a, b| a.gbps.total_cmp(&b.gbps)) {
        all.push(offer(format!("links of {} Gb/s", link.gbps), workers, servers, link)?);
    }
    let (price, steps) = (all[0].price, all[0].steps_per_s);
    for other in &mut all[1..] {
        let more = other.price - price;
        let gained = 1000.0 * (other.steps_per_s - steps) / more;
        other.gained_per_1000 = (more > 0.0).then_some(gained);
    }
    Ok(all)
}
