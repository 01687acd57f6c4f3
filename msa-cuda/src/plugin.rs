//! The NVIDIA backend as a plugin. It takes no options.

use std::sync::Arc;

use msa_core::abi::export::{HostOptions, Plugin};
use msa_core::backend::Backend;
use msa_core::error::Result;

/// The plugin, which the library exports under the feature `plugin`.
pub const PLUGIN: Plugin = Plugin {
    name: "cuda",
    version: env!("CARGO_PKG_VERSION"),
    build: match option_env!("MSA_BUILD") {
        Some(build) => build,
        None => "unversioned",
    },
    arches: "sm90a sm100a sm100f sm103a sm107a",
    backend,
};

msa_core::export_plugin!(PLUGIN);

fn backend(_: &mut HostOptions) -> Result<Arc<dyn Backend>> {
    Ok(crate::backend())
}

#[cfg(test)]
mod tests {
    use msa_core::device::Arch;
    use msa_core::op::OpKind;

    use super::PLUGIN;

    #[test]
    fn every_architecture_of_the_plugin_has_variants_and_images() {
        for name in PLUGIN.arches.split(' ') {
            let arch = Arch::from_name(name).expect("a known architecture");
            assert_eq!(arch.name(), name);
            let variants = crate::variants(arch);
            assert!(!variants.is_empty(), "{name}");
            if crate::has_kernels() {
                let image = |v: &msa_core::variant::Variant| crate::variants::image_of(v.name, arch);
                // A step runs the kernels of its stages.
                for v in variants.iter().filter(|v| v.op != OpKind::Step) {
                    assert!(crate::images::find(&image(v), name).is_some(), "{}", v.name);
                }
                for v in variants.iter().filter(|v| v.op == OpKind::IndexScore) {
                    let image = crate::variants::ranks_image(&image(v));
                    assert!(crate::images::find(&image, name).is_some(), "{image}");
                }
                for image in ["exchange_keys.u64.inbox", "gather_queries.b32.inbox"] {
                    assert!(crate::images::find(image, name).is_some(), "{image}");
                }
            }
        }
    }
}
