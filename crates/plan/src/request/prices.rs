//! Reads a price list: the TOML of `sumpter plan --prices`.

use std::ops::RangeInclusive;

use serde::Deserialize;

use crate::machine::bandwidth_expected;
use crate::request::loose::{Loose, within};
use crate::{BANDWIDTH_GBPS, LinkPrice, PlanError, Prices};

const PRICE: RangeInclusive<f64> = 0.0..=1e12;
const PRICE_EXPECTED: &str = "a price from 0 to 1e12";
const OVERSUBSCRIPTION: RangeInclusive<f64> = 1.0..=1e6;
const GPUS: RangeInclusive<f64> = 0.0..=1024.0;

/// The paper's number of GPUs in a worker.
const DEFAULT_GPUS: f64 = 4.0;

/// Reads a price list.
///
/// ```
/// let prices = sumpter_plan::parse_prices(
///     r#"
///     worker = { price = 4000, gpu_price = 700 }
///     helper = { price = 3000 }
///     link = [{ gbps = 25, nic = 200, switch_port = 150, cable = 40 }]
///     "#,
/// )?;
/// assert_eq!((prices.gpus, prices.oversubscription), (4.0, 1.0));
/// assert_eq!(prices.worker_price(&prices.links[0], false), 4000.0 + 2800.0 + 390.0 + 680.0);
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
///
/// # Errors
/// What is not TOML, or a field that is missing, unknown, of the wrong type or out of range.
pub fn parse_prices(toml: &str) -> Result<Prices, PlanError> {
    let list: RawPrices = toml::from_str(toml)
        .map_err(|error| PlanError::PriceList(error.to_string().trim_end().to_owned()))?;
    let price = |value: Option<&Loose>, field: &str| within(value, field, &PRICE, PRICE_EXPECTED);
    let worker = list.worker.unwrap_or_default();
    let helper = list.helper.unwrap_or_default();
    let mut links: Vec<LinkPrice> = Vec::new();
    for (number, link) in list.link.iter().enumerate() {
        let field = |key| format!("link {}: {key}", number + 1);
        let gbps = field("gbps");
        let gbps = within(link.gbps.as_ref(), &gbps, &BANDWIDTH_GBPS, &bandwidth_expected())?;
        if links.iter().any(|known| known.gbps == gbps) {
            return Err(PlanError::field(field("gbps"), gbps, "each speed once"));
        }
        links.push(LinkPrice {
            gbps,
            nic: price(link.nic.as_ref(), &field("nic"))?,
            switch_port: price(link.switch_port.as_ref(), &field("switch_port"))?,
            cable: price(link.cable.as_ref(), &field("cable"))?,
        });
    }
    let or = |value: Option<&Loose>, field: &str, range: &RangeInclusive<f64>, default: f64| {
        let (least, most) = (range.start(), range.end());
        let expected = format!("a number from {least} to {most}");
        value.map_or(Ok(default), |value| within(Some(value), field, range, &expected))
    };
    let oversubscription = list.oversubscription.as_ref();
    Ok(Prices {
        worker: price(worker.price.as_ref(), "worker: price")?,
        gpu: price(worker.gpu_price.as_ref(), "worker: gpu_price")?,
        gpus: or(worker.gpus.as_ref(), "worker: gpus", &GPUS, DEFAULT_GPUS)?,
        helper: price(helper.price.as_ref(), "helper: price")?,
        oversubscription: or(oversubscription, "oversubscription", &OVERSUBSCRIPTION, 1.0)?,
        links,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPrices {
    oversubscription: Option<Loose>,
    worker: Option<RawWorker>,
    helper: Option<RawHelper>,
    #[serde(default)]
    link: Vec<RawLink>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWorker {
    price: Option<Loose>,
    gpu_price: Option<Loose>,
    gpus: Option<Loose>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHelper {
    price: Option<Loose>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    gbps: Option<Loose>,
    nic: Option<Loose>,
    switch_port: Option<Loose>,
    cable: Option<Loose>,
}
