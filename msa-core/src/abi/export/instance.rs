use std::sync::{Arc, Mutex, PoisonError};

use super::options::HostOptions;
use super::{Plugin, functions};
use crate::abi::table::{ABI_MAJOR, ABI_MINOR, MsaInstance, MsaPluginApi, MsaText};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::op::OP_REVISION;

/// A plugin as a host loaded it. Lives for the process; one for each set of options, so that a host may load one
/// library with several of them.
pub(super) struct Instance {
    backend: Result<Arc<dyn Backend>>,
    /// Test hook: the function that panics.
    panic_in: Option<String>,
    table: MsaPluginApi,
}

impl Instance {
    /// The backend, or why there is none.
    pub(super) fn backend(&self) -> Result<&Arc<dyn Backend>> {
        self.backend.as_ref().map_err(Clone::clone)
    }

    /// The table.
    pub(super) fn table(&'static self) -> *const MsaPluginApi {
        &raw const self.table
    }

    /// Called on entry to `function`.
    pub(super) fn enter(&self, function: &str) {
        if self.panic_in.as_deref() == Some(function) {
            // As a panic unwinds, without the report on standard error.
            std::panic::resume_unwind(Box::new("planted by the option 'panic'"));
        }
    }
}

/// The instance of `plugin` with `options`: the one made before, or a new one.
pub(super) fn find_or_make(plugin: &'static Plugin, options: &str) -> Result<&'static Instance> {
    struct Made {
        plugin: *const Plugin,
        options: String,
        instance: &'static Instance,
    }
    // SAFETY: the pointer is compared only, never followed.
    unsafe impl Send for Made {}
    static MADE: Mutex<Vec<Made>> = Mutex::new(Vec::new());

    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |made: &&Made| std::ptr::eq(made.plugin, plugin) && made.options == options;
    if let Some(found) = made.iter().find(same) {
        return Ok(found.instance);
    }
    let instance = make(plugin, options)?;
    made.push(Made { plugin, options: options.to_owned(), instance });
    Ok(instance)
}

fn make(plugin: &'static Plugin, text: &str) -> Result<&'static Instance> {
    let mut options = HostOptions::parse(text)?;
    let panic_in = options.take("panic");
    let backend = (plugin.backend)(&mut options);
    options.finish()?;
    if let Err(error) = &backend
        && !matches!(error, Error::Unavailable { .. })
    {
        return Err(error.clone());
    }
    let instance = Box::leak(Box::new(Instance { backend, panic_in, table: table(plugin) }));
    // The functions read the instance only: the pointer stands in the table once and is never written through.
    instance.table.instance = (&raw mut *instance).cast::<MsaInstance>();
    Ok(instance)
}

fn table(plugin: &'static Plugin) -> MsaPluginApi {
    MsaPluginApi {
        struct_size: size_of::<MsaPluginApi>() as u32,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        op_revision: OP_REVISION,
        name: MsaText::of(plugin.name),
        version: MsaText::of(plugin.version),
        build: MsaText::of(plugin.build),
        arches: MsaText::of(plugin.arches),
        instance: std::ptr::null_mut(),
        device_count: Some(functions::device_count),
        device_info: Some(functions::device_info),
        device_open: Some(functions::device_open),
        device_close: Some(functions::device_close),
        variant_count: Some(functions::variant_count),
        variant: Some(functions::variant),
        support: Some(functions::support),
        plan: Some(functions::plan),
        prepare: Some(functions::prepare),
        prepared_free: Some(functions::prepared_free),
        enqueue: Some(functions::enqueue),
        status: Some(functions::status),
        allocate: Some(functions::allocate),
        release: Some(functions::release),
        write: Some(functions::write),
        read: Some(functions::read),
        synchronize: Some(functions::synchronize),
    }
}
