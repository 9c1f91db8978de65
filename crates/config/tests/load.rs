//! Loading: which source wins, what is refused, and how a refusal reads.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use sumpter_codec::Registry;
use sumpter_config::{Config, ConfigError, SETTINGS, load_from};

const SECRET: &str = "a secret of enough letters";

fn load(arguments: &[(&str, &str)], variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let own = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
    let variables: HashMap<String, String> = variables.iter().map(own).collect();
    let arguments: Vec<_> = arguments.iter().map(own).collect();
    load_from(&arguments, |name| variables.get(name).cloned())
}

fn message(arguments: &[(&str, &str)], variables: &[(&str, &str)]) -> String {
    load(arguments, variables).expect_err("must be refused").to_string()
}

/// A directory that is removed at the end of a test.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn without_anything_given_the_defaults_hold() {
    let config = load(&[], &[]).unwrap();
    assert_eq!(config.coordinator, None);
    assert_eq!((config.rank, config.world_size), (0, 1));
    assert_eq!(config.partition_bytes, 256 << 10);
    assert_eq!(config.chunk_bytes, 256 << 10);
    assert_eq!(config.credit_bytes, None);
    assert_eq!(config.max_job_bytes, 64 << 30);
    assert_eq!(config.start_timeout().as_secs(), 30);
    assert_eq!(config.peer_timeout().as_secs(), 4);
    assert_eq!(config.server_timeout().as_secs(), 2);
    assert_eq!((config.job.as_str(), config.log.as_str()), ("default", "warn,notice=info"));
    assert!(config.token().unwrap().is_none());
    assert!(!config.machine_id().is_empty());
}

#[test]
fn an_argument_beats_the_environment_which_beats_the_default() {
    let variables = [("SUMPTER_PARTITION_BYTES", "4MiB"), ("SUMPTER_MACHINE", "rack-7")];
    assert_eq!(load(&[], &variables).unwrap().partition_bytes, 4 << 20);
    assert_eq!(load(&[], &variables).unwrap().machine_id(), "rack-7");
    let config = load(&[("partition_bytes", "8192")], &variables).unwrap();
    assert_eq!(config.partition_bytes, 8192);
    let twice = [("partition_bytes", "8192"), ("partition_bytes", "4096")];
    assert_eq!(load(&twice, &variables).unwrap().partition_bytes, 4096);
}

#[test]
fn an_empty_variable_counts_as_absent() {
    assert_eq!(load(&[], &[("SUMPTER_JOB", " ")]).unwrap().job, "default");
}

#[test]
fn every_setting_is_read_from_its_variable_and_from_its_argument() {
    let mut samples: HashMap<&str, &str> = SETTINGS.iter().map(|s| (s.name, s.default)).collect();
    samples.extend([
        ("coordinator", "node:1"),
        ("token", SECRET),
        ("token_file", "/a/b"),
        ("machine", "m"),
        ("local_rank", "0"),
        ("local_size", "1"),
        ("bandwidth_gbps", "25"),
        ("rack", "r1"),
        ("trunk_gbps", "100"),
        ("device_group", "host/0"),
        ("interfaces", "eth0,eth1"),
        ("fabric_provider", "verbs"),
        ("fabric_device", "mlx5_0"),
        ("codecs", "mine,of.a.package"),
        ("timeline", "/a/t.json"),
        ("record_order", "/a/recorded"),
        ("replay_order", "/a/replayed"),
        ("max_bytes", "1GiB"),
        ("tenants", "/a/tenants.toml"),
        ("tls_cert", "/a/cert.pem"),
        ("tls_key", "/a/key.pem"),
        ("tls_ca", "/a/ca.pem"),
    ]);
    for setting in SETTINGS {
        let sample = samples[setting.name];
        load(&[], &[(setting.env, sample)]).expect(setting.name);
        load(&[(setting.name, sample)], &[]).expect(setting.name);
        let refused = load(&[(setting.name, "")], &[]);
        assert!(refused.is_err(), "an empty argument was accepted for {}", setting.name);
    }
}

#[test]
fn a_refusal_names_setting_source_value_and_what_is_accepted() {
    let text = message(&[], &[("SUMPTER_PARTITION_BYTES", "5000")]);
    for part in ["partition_bytes", "environment variable SUMPTER_PARTITION_BYTES", "5000", "4KiB"]
    {
        assert!(text.contains(part), "{text}");
    }
    let text = message(&[("deterministic", "maybe")], &[]);
    assert!(text.contains("(argument)") && text.contains("\"maybe\""), "{text}");
}

#[test]
fn values_outside_their_range_are_refused() {
    let refused = [
        ("coordinator", "node"),
        ("world_size", "0"),
        ("start_timeout_s", "nan"),
        ("peer_timeout_s", "-1"),
        ("peer_timeout_s", "inf"),
        ("chunk_bytes", "32MiB"),
        ("chunk_bytes", "5000"),
        ("bandwidth_gbps", "0"),
        ("rack", "r 1"),
        ("trunk_gbps", "-1"),
        ("device_group", "g 1"),
        ("device_shards", "some"),
        ("lanes", "2000"),
        ("io_threads", "0"),
        ("io_threads", "65"),
        ("port", "70000"),
        ("job", "two words"),
        ("log", "shout"),
    ];
    for (name, value) in refused {
        assert!(message(&[(name, value)], &[]).contains(name), "{name}={value}");
    }
}

#[test]
fn a_codec_is_brought_into_canonical_form() {
    let codec = |text| load(&[("compression", text)], &[]).unwrap().compression;
    assert_eq!(load(&[], &[]).unwrap().compression, "");
    assert_eq!((codec("none"), codec("int8")), (String::new(), "int8".to_owned()));
    assert_eq!(codec("topk:momentum=0.90,k=0.010"), "topk:k=0.01,momentum=0.9");
    assert_eq!([codec("auto"), codec("auto:codecs=bf16+int8")], ["auto", "auto"]);
    assert_eq!(codec("auto:codecs=fp8+topk:k=0.010"), "auto:codecs=fp8+topk:k=0.01");
    let config = load(&[], &[("SUMPTER_COMPRESSION_MIN_BYTES", "1MiB")]).unwrap();
    assert_eq!(config.compression_min_bytes, 1 << 20);
    let wrong = [
        ("zip", "no codec is called 'zip': give one of fp16,"),
        ("int8:bits=4", "codec int8 takes no argument 'bits': give scale, ef, nan"),
        ("topk:k=0", "codec topk: k=0: give a part of all elements"),
        ("topk", "codec topk: k=: give a part"),
        ("auto:codecs=", "codec auto: codecs=: give one or more codecs"),
        ("auto:codecs=powersgd", "codec powersgd:rank=4 cannot be used here"),
    ];
    for (text, said) in wrong {
        let refused = message(&[], &[("SUMPTER_COMPRESSION", text)]);
        let origin = "setting compression (environment variable SUMPTER_COMPRESSION): ";
        assert!(refused.starts_with(origin) && refused.contains(said), "{refused}");
    }
    message(&[("compression_min_bytes", "-1")], &[]);
}

#[test]
fn a_codec_of_users_is_known_once_its_module_was_imported() {
    let mine = [("compression", "mine:level=3"), ("codecs", "module")];
    let mut config = load(&mine, &[]).unwrap();
    assert_eq!(config.compression, "mine:level=3");
    let refused = config.settle_compression(&Registry::new()).unwrap_err().to_string();
    let said = "no codec is called 'mine': give one of fp16";
    assert!(refused.contains(said) && refused.ends_with("setting codecs registers"), "{refused}");
    // What is known to be wrong is an error at once.
    message(&[("compression", "int8:bits=4"), ("codecs", "module")], &[]);
    assert!(message(&mine[..1], &[]).contains(said));
}

#[test]
fn settings_that_contradict_each_other_are_both_named() {
    let text = message(&[("rank", "4")], &[("WORLD_SIZE", "4")]);
    assert!(text.contains("rank = 4 (argument)"), "{text}");
    assert!(text.contains("world_size = 4 (environment variable WORLD_SIZE)"), "{text}");
    let text = message(&[("rank", "1")], &[]);
    assert!(text.contains("world_size = 1 (default)"), "{text}");
    message(&[("local_rank", "1"), ("local_size", "1")], &[]);
    message(&[("local_size", "2")], &[]);
    let elastic = [("device_group", "g"), ("min_workers", "1")];
    assert!(message(&elastic, &[]).contains("redo=false"));
    load(&[("device_group", "g"), ("min_workers", "1"), ("redo", "false")], &[]).unwrap();
    message(&[("port", "65535"), ("lanes", "2")], &[]);
    load(&[("port", "65535"), ("lanes", "1")], &[]).unwrap();
}

#[test]
fn an_argument_that_names_no_setting_is_refused_with_the_nearest_name() {
    let text = message(&[("partiton-bytes", "1")], &[]);
    assert!(text.contains("did you mean partition_bytes?"), "{text}");
    let text = message(&[("interface", "eth0")], &[]);
    assert!(text.contains("did you mean interfaces?"), "{text}");
    assert!(!message(&[("qqqqqqqqqqqqqqqqqqqqqq", "1")], &[]).contains("did you mean"));
}

#[test]
fn a_token_comes_from_its_text_or_its_file() {
    let scratch = Scratch::new("token-sources");
    let path = scratch.file("token", &format!("{SECRET}\n"));
    let from_text = load(&[], &[("SUMPTER_TOKEN", SECRET)]).unwrap().token().unwrap();
    let from_file = load(&[], &[("SUMPTER_TOKEN_FILE", &path)]).unwrap().token().unwrap();
    assert!(from_text.is_some());
    assert_eq!(from_text, from_file);
}

#[test]
fn two_tokens_contradict_each_other_unless_one_is_an_argument() {
    let scratch = Scratch::new("two-tokens");
    let path = scratch.file("token", "quite another secret");
    let variables = [("SUMPTER_TOKEN", SECRET), ("SUMPTER_TOKEN_FILE", path.as_str())];
    let text = message(&[], &variables);
    assert!(text.contains("SUMPTER_TOKEN_FILE") && !text.contains(SECRET), "{text}");

    let by_text = load(&[("token", SECRET)], &variables[1..]).unwrap().token().unwrap();
    let by_file = load(&[("token_file", &path)], &variables[..1]).unwrap().token().unwrap();
    assert_eq!(by_text, load(&[], &variables[..1]).unwrap().token().unwrap());
    assert_eq!(by_file, load(&[], &variables[1..]).unwrap().token().unwrap());
    message(&[("token", SECRET), ("token_file", &path)], &[]);
}

#[test]
fn a_token_that_cannot_be_one_is_refused_without_being_shown() {
    let text = message(&[], &[("SUMPTER_TOKEN", "hunter2")]);
    assert!(text.contains("SUMPTER_TOKEN") && text.contains("at least 16"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");

    let scratch = Scratch::new("bad-token");
    let path = scratch.file("token", "hunter2");
    let config = load(&[("token_file", &path)], &[]).unwrap();
    let text = config.token().unwrap_err().to_string();
    assert!(text.contains("token_file") && !text.contains("hunter2"), "{text}");

    let config = load(&[("token_file", "/nowhere/token")], &[]).unwrap();
    let text = config.token().unwrap_err().to_string();
    assert!(text.contains("/nowhere/token"), "{text}");
}

#[test]
fn a_printed_configuration_does_not_show_the_token() {
    let config = load(&[("token", SECRET)], &[]).unwrap();
    assert!(!format!("{config:?}").contains(SECRET));
}

proptest! {
    #[test]
    fn no_value_makes_loading_panic(index in 0..SETTINGS.len(), value in ".{0,24}") {
        let _ = load(&[(SETTINGS[index].name, &value)], &[]);
    }
}
