//! Samples as OpenMetrics text.

use std::fmt::{self, Write};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelValue, EncodeMetric, LabelValueEncoder, text,
};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::families::{FAMILIES, Family, Metric};
use crate::samples::Sample;

/// The text of a scrape.
///
/// # Errors
/// None: writing into memory cannot fail, but the library's functions can.
pub fn encode(samples: Vec<Sample>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(samples)));
    let mut out = String::new();
    encode_registry(&mut out, &registry)?;
    text::encode_eof(&mut out)?;
    Ok(out)
}

#[derive(Debug)]
struct Scrape(Vec<Sample>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in FAMILIES {
            let mut samples = self.0.iter().filter(|sample| sample.family == *family).peekable();
            if samples.peek().is_some() {
                encode_family(&mut encoder, family, samples)?;
            }
        }
        Ok(())
    }
}

fn encode_family<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    family: &Family,
    samples: impl Iterator<Item = &'a Sample>,
) -> fmt::Result {
    let unit = match family.unit {
        "" => None,
        "bytes" => Some(Unit::Bytes),
        "seconds" => Some(Unit::Seconds),
        other => Some(Unit::Other(other.to_owned())),
    };
    let kind = match family.metric {
        Metric::Counter => ConstCounter::new(0.0).metric_type(),
        Metric::Gauge => ConstGauge::new(0.0).metric_type(),
    };
    let mut metric = encoder.encode_descriptor(family.base, family.help, unit.as_ref(), kind)?;
    for sample in samples {
        let labels: Vec<_> = sample.labels.iter().map(|(k, v)| (*k, Escaped(v))).collect();
        let one = metric.encode_family(&labels)?;
        match family.metric {
            Metric::Counter => ConstCounter::new(sample.value).encode(one)?,
            Metric::Gauge => ConstGauge::new(sample.value).encode(one)?,
        }
    }
    Ok(())
}

/// A label's value: the library writes values as they are, and names of jobs and hosts come from
/// anybody who holds a token.
#[derive(Debug)]
struct Escaped<'a>(&'a str);

impl EncodeLabelValue for Escaped<'_> {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => encoder.write_str("\\\\"),
            '"' => encoder.write_str("\\\""),
            '\n' => encoder.write_str("\\n"),
            other => encoder.write_char(other),
        })
    }
}
