//! The texts people write: machine lists, plan requests and settings.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = sumpter_plan::report_json(text);
    if text.len() < 4096 {
        let _ = sumpter_plan::parse_machines(text);
    }
    for setting in sumpter_config::SETTINGS {
        let overrides = [(setting.name.to_owned(), text.to_owned())];
        let _ = sumpter_config::load_from(&overrides, |_| None);
    }
});
