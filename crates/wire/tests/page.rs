//! The normative page says what this crate does.

use sumpter_wire::PROTOCOL_VERSION;

#[test]
fn the_page_of_the_wire_format_names_the_version() {
    let page = include_str!("../../../docs/design/wire.md");
    let row = format!("| 8 | 2 | protocol version: {PROTOCOL_VERSION} |");
    assert!(page.contains(&row), "docs/design/wire.md lacks: {row}");
}
