//! The coordinator's tenants: from the file that the settings name.

use sumpter_config::{Config, ConfigError, TenantRow};
use sumpter_membership::{Tenant, Tenants};
use sumpter_types::Quota;
use sumpter_wire::Token;

/// Which jobs a coordinator with these settings admits.
pub(crate) fn tenants(config: &Config, cluster: &Token) -> Result<Tenants, ConfigError> {
    let rows = config.tenant_rows()?;
    if let Some(row) = rows.iter().flatten().find(|row| row.token == *cluster) {
        // A holder could pass for a server, and would get every run's key.
        let reason = format!("job '{}' has the cluster's token; give it one of its own", row.name);
        return Err(ConfigError::Tenants {
            path: config.tenants.clone().unwrap_or_default(),
            reason,
        });
    }
    let listed = rows.map(|rows| rows.into_iter().map(tenant).collect());
    Ok(Tenants { listed, max_jobs: (config.max_jobs > 0).then_some(config.max_jobs) })
}

fn tenant(row: TenantRow) -> Tenant {
    let TenantRow { name, token, weight, max_bytes, max_connections, max_workers } = row;
    Tenant { name, token, quota: Quota { weight, max_bytes, max_connections }, max_workers }
}
