//! Which devices a runtime claims to have.

use msa_emu::gfx9::Options;

/// Which devices, and how the interpreter runs.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Architectures, as drivers name them.
    pub architectures: Vec<String>,
    /// Every device reaches the memory of every other.
    pub mapped: bool,
    /// Compute units that a device claims.
    pub units: u32,
    /// Order of waves, and the bound of a run.
    pub options: Options,
}

impl Setup {
    /// Devices that reach each other, each with 4 compute units.
    pub fn of(architectures: &[&str]) -> Self {
        Self {
            architectures: architectures.iter().map(|name| (*name).to_owned()).collect(),
            mapped: true,
            units: 4,
            options: Options::default(),
        }
    }

    pub(crate) fn from_environment() -> Self {
        let list = std::env::var("MSA_FAKE_HIP_DEVICES").unwrap_or_else(|_| "gfx950".to_owned());
        let names: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let mut setup = Self::of(&names);
        if let Some(name) = std::env::var("HSA_OVERRIDE_GFX_VERSION").ok().as_deref().and_then(overridden) {
            setup.architectures.iter_mut().for_each(|architecture| architecture.clone_from(&name));
        }
        setup
    }
}

/// `9.4.2` is `gfx942`: major in decimal, minor and stepping in hexadecimal.
fn overridden(version: &str) -> Option<String> {
    let numbers: Vec<u32> = version.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [major, minor, stepping] = numbers[..] else { return None };
    Some(format!("gfx{major}{minor:x}{stepping:x}"))
}
