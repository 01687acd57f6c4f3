//! What the library pretends, from the environment of its process.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `MSA_FAKE_CUDA_DEVICES` | compute capabilities, `9.0,10.3`; empty for a driver without devices | `9.0` |
//! | `MSA_FAKE_CUDA_VERSION` | what `cuDriverGetVersion` answers | 13000 |
//! | `MSA_FAKE_CUDA_MEMORY` | bytes of every device | 16 GiB |
//! | `MSA_FAKE_CUDA_PEERS` | 0 if no device maps the memory of another | 1 |
//! | `MSA_FAKE_CUDA_IMAGES` | folder with the `.fatbin` and `.cubin` files of the kernel build | none: no image loads |

use std::path::PathBuf;

/// Compute capability.
pub(crate) type Capability = (u32, u32);

pub(crate) struct Config {
    pub(crate) devices: Vec<Capability>,
    pub(crate) version: i32,
    pub(crate) memory: u64,
    pub(crate) peers: bool,
    pub(crate) images: Option<PathBuf>,
}

impl Config {
    pub(crate) fn of_environment() -> Self {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let devices = std::env::var("MSA_FAKE_CUDA_DEVICES").unwrap_or_else(|_| "9.0".to_owned());
        Self {
            devices: devices.split(',').filter_map(capability).collect(),
            version: number("MSA_FAKE_CUDA_VERSION").map_or(13_000, |version| version as i32),
            memory: number("MSA_FAKE_CUDA_MEMORY").unwrap_or(16 << 30),
            peers: number("MSA_FAKE_CUDA_PEERS") != Some(0),
            images: std::env::var_os("MSA_FAKE_CUDA_IMAGES").map(PathBuf::from),
        }
    }
}

fn capability(text: &str) -> Option<Capability> {
    let (major, minor) = text.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Multiprocessors of a device: those of an H200, else of a B200.
pub(crate) fn units(capability: Capability) -> u32 {
    if capability.0 == 9 { 132 } else { 148 }
}
