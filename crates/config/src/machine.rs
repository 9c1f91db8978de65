//! Which machine this process runs on.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// A text that is equal for processes of one machine and differs between machines: the kernel's
/// boot id and the network namespace. Two containers with separate networks are two machines,
/// because what counts is the network interface they send through.
#[must_use]
pub fn local_machine_id() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let boot = boot.as_deref().map(str::trim).filter(|id| !id.is_empty());
    match (boot, fs::metadata("/proc/self/ns/net")) {
        (Some(boot), Ok(namespace)) => format!("{boot}/{}", namespace.ino()),
        _ => host_name(),
    }
}

/// The host's name, for messages.
#[must_use]
pub fn host_name() -> String {
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .map(|name| name.trim().to_owned())
        .find(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown-host".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_one_stable_identity_and_a_name() {
        assert_eq!(local_machine_id(), local_machine_id());
        assert!(!local_machine_id().contains(char::is_whitespace));
        assert!(!host_name().is_empty());
    }
}
