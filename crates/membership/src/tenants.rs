//! Tenants: jobs that share a coordinator and its servers and do not trust each other.

use sumpter_types::Quota;
use sumpter_wire::Token;

/// A job, or the jobs of a pattern: each of them has this token and this quota.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// The job's name, in which `*` stands for any characters.
    pub name: String,
    /// What its workers must prove to hold.
    pub token: Token,
    /// What it may take of each server.
    pub quota: Quota,
    /// Its largest world.
    pub max_workers: Option<u32>,
}

/// Which jobs a coordinator admits.
#[derive(Clone, Debug, Default)]
pub struct Tenants {
    /// The listed jobs, of which the first that matches counts; `None` if every job is welcome
    /// that holds the cluster token.
    pub listed: Option<Vec<Tenant>>,
    /// Jobs at once; `None` for any number.
    pub max_jobs: Option<u32>,
}

impl Tenants {
    /// The tenant a job belongs to.
    #[must_use]
    pub fn of(&self, job: &str) -> Option<&Tenant> {
        // All are looked at, so that the time it takes does not reveal which one it was.
        let listed = self.listed.as_deref().unwrap_or_default();
        listed.iter().fold(None, |found, tenant| {
            let fits = matches(&tenant.name, base_name(job));
            found.or(fits.then_some(tenant))
        })
    }

    /// What a job may take of each server.
    #[must_use]
    pub fn quota(&self, job: &str) -> Quota {
        self.of(job).map_or_else(Quota::default, |tenant| tenant.quota)
    }
}

/// The job's name without the generation, which elastic jobs have behind it.
#[must_use]
pub fn base_name(job: &str) -> &str {
    match job.rsplit_once('@') {
        Some((name, generation)) if generation.parse::<u64>().is_ok() => name,
        _ => job,
    }
}

/// Which generation of a job this is; 0 for what is no generation.
#[must_use]
pub fn generation(job: &str) -> u64 {
    job.rsplit_once('@').and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

/// Whether `name` fits `pattern`, in which `*` stands for any characters, also none.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        // The earliest place leaves the most for what follows.
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name) in
            [("a", "a"), ("*", ""), ("a*", "abc"), ("*c", "abc"), ("a*b*c", "aabbcc")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("a", "ab"), ("a*", "ba"), ("a*a", "a"), ("a*b*c", "acb"), ("", "a")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    proptest! {
        /// A star in the place of any piece of a name matches the name.
        #[test]
        fn a_star_stands_for_any_piece(parts in ["[a-c]{0,4}", "[a-c]{0,4}", "[a-c]{0,4}"]) {
            let [head, _, tail] = &parts;
            let (name, starred) = (parts.concat(), format!("{head}*{tail}"));
            prop_assert!(matches(&starred, &name));
            prop_assert!(matches("*", &name) && matches(&name, &name));
        }
    }
}
