//! The file of tenants: what it gives, and how its mistakes are named.

use std::fs;
use std::path::PathBuf;

use sumpter_config::{TenantRow, load_from};
use sumpter_wire::Token;

/// A folder of this test's own, with the token files `a` and `short`.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("a"), "the token of tenant a\n").unwrap();
    fs::write(folder.join("short"), "short\n").unwrap();
    folder
}

fn rows(name: &str, text: &str) -> Result<Vec<TenantRow>, String> {
    let path = folder(name).join("tenants.toml");
    fs::write(&path, text).unwrap();
    let path = path.to_string_lossy().into_owned();
    let config = load_from(&[("tenants".to_owned(), path)], |_| None).unwrap();
    config.tenant_rows().map(Option::unwrap).map_err(|error| error.to_string())
}

#[test]
fn an_entry_has_a_token_a_weight_and_quotas() {
    let text = r#"
        [[job]]
        name = "vision-*"
        token_file = "a"
        weight = 3
        max_bytes = "2GiB"
        max_connections = 8
        max_workers = 4

        [[job]]
        name = "*"
        token_file = "a"
    "#;
    let rows = rows("whole", text).unwrap();
    let token = Token::new("the token of tenant a").unwrap();
    let [first, second] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((first.name.as_str(), &first.token, first.weight), ("vision-*", &token, 3));
    assert_eq!((first.max_bytes, first.max_connections), (Some(2 << 30), Some(8)));
    assert_eq!((first.max_workers, second.max_workers), (Some(4), None));
    assert_eq!((second.weight, second.max_bytes), (1, None));
    assert!(!format!("{rows:?}").contains("tenant a"));
}

#[test]
fn a_mistake_is_named_with_the_file_and_the_job() {
    let entry = |more: &str| format!("[[job]]\nname = \"j\"\ntoken_file = \"a\"\n{more}");
    let mistakes = [
        ("none", String::new(), "lists no job"),
        ("unknown", entry("wieght = 2"), "unknown field `wieght`"),
        ("twice", [entry(""), entry("")].concat(), "'j' is listed twice"),
        ("weight", entry("weight = 0"), "job 'j': weight = 0"),
        ("size", entry("max_bytes = \"much\""), "job 'j': max_bytes = \"much\""),
        ("nobody", entry("max_workers = 0"), "max_workers = 0 would admit no worker"),
        ("absent", entry("").replace("\"a\"", "\"b\""), "cannot read token_file"),
        ("short", entry("").replace("\"a\"", "\"short\""), "has 5 characters"),
        ("name", entry("").replace("\"j\"", "\"j k\""), "without white space"),
    ];
    for (name, text, expected) in mistakes {
        let error = rows(name, &text).unwrap_err();
        assert!(error.contains(expected) && error.contains("tenants.toml"), "{name}: {error}");
    }
    let absent = load_from(&[("tenants".to_owned(), "no/such".to_owned())], |_| None).unwrap();
    let error = absent.tenant_rows().unwrap_err().to_string();
    assert!(error.contains("no/such") && error.contains("cannot read it"), "{error}");
}

#[test]
fn without_a_file_there_are_no_entries() {
    assert!(load_from(&[], |_| None).unwrap().tenant_rows().unwrap().is_none());
}
