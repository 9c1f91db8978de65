//! The decoders of the control plane: any bytes are a message or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| sumpter_coordinator::decode_any(data));
