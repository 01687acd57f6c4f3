//! One call across the border: status and text become an error of this side.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Plugin;
use crate::abi::table::{MsaBuffer, MsaDevice, MsaDiag};
use crate::abi::{Diagnosis, Policy, plugin, status};
use crate::error::{Error, Result};

/// Calls a function of the table; a status other than 0 is an error. `name` is the backend's on this side.
pub(super) fn call(plugin: &Plugin, name: &str, function: impl FnOnce(*mut MsaDiag) -> u32) -> Result<()> {
    let mut diagnosis = Diagnosis::new();
    match function(diagnosis.as_mut()) {
        status::OK => Ok(()),
        answer => Err(diagnosis.error(answer, name, plugin.path())),
    }
}

/// An open device of a plugin; closed when the last user drops it.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) plugin: Arc<Plugin>,
    /// Name for messages, `cuda:0`.
    pub(super) name: String,
    pub(super) raw: *mut MsaDevice,
    lost: AtomicBool,
}

// SAFETY: ABI-10: the functions of the table may be called from any thread with any handle.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub(super) fn new(plugin: Arc<Plugin>, name: String, raw: *mut MsaDevice) -> Self {
        Self { plugin, name, raw, lost: AtomicBool::new(false) }
    }

    /// Calls a function on the device. After a panic nothing is called any more.
    pub(super) fn call(&self, function: impl FnOnce(*mut MsaDiag) -> u32) -> Result<()> {
        if self.lost.load(Ordering::Acquire) {
            let detail = format!("{} is lost: the plugin panicked on it before", self.name);
            return Err(plugin(self.plugin.path(), Policy::NoUnwinding, detail));
        }
        let mut panicked = false;
        let result = call(&self.plugin, &self.name, |diag| {
            let answer = function(diag);
            panicked = answer == status::PANIC;
            answer
        });
        if panicked {
            self.lost.store(true, Ordering::Release);
        }
        result
    }

    /// The plugin's fault.
    pub(super) fn fault(&self, policy: Policy, detail: impl Into<String>) -> Error {
        plugin(self.plugin.path(), policy, detail)
    }

    /// Text of any length: `function` is called once more if the first buffer was too small.
    pub(super) fn text(
        &self,
        mut function: impl FnMut(&mut MsaBuffer, *mut MsaDiag) -> u32,
    ) -> Result<String> {
        let mut bytes = vec![0; FIRST_ROOM];
        loop {
            let mut buffer = MsaBuffer::of(&mut bytes);
            self.call(|diag| function(&mut buffer, diag))?;
            match text_of(&bytes, buffer.length) {
                Ok(text) => return Ok(text),
                Err(Short::More(length)) if bytes.len() == FIRST_ROOM => bytes = vec![0; length],
                Err(Short::More(length)) => {
                    return Err(self.fault(
                        Policy::Ownership,
                        format!("a text grew to {length} bytes between two calls"),
                    ));
                }
                Err(Short::Bad(detail)) => return Err(self.fault(Policy::Ownership, detail)),
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let close = self.plugin.functions.device_close;
        // SAFETY: the handle came from `device_open` of this plugin and is not used again.
        let closed = call(&self.plugin, &self.name, |diag| unsafe { close(self.raw, diag) });
        if let Err(error) = closed {
            tracing::warn!("closing {}: {error}", self.name);
        }
    }
}

/// Room for a text at first: most plans fit.
const FIRST_ROOM: usize = 64 << 10;

/// Longest text that a plugin is believed, bytes.
const MAX_TEXT: u64 = 256 << 20;

/// Why a buffer holds no text.
pub(super) enum Short {
    /// This many bytes are needed.
    More(usize),
    /// The plugin broke the rules.
    Bad(String),
}

/// The text that a plugin put into `bytes`.
pub(super) fn text_of(bytes: &[u8], length: u64) -> Result<String, Short> {
    if length > MAX_TEXT {
        return Err(Short::Bad(format!("a text of {length} bytes")));
    }
    let filled = bytes.get(..length as usize).ok_or(Short::More(length as usize))?;
    match std::str::from_utf8(filled) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(Short::Bad(format!("text that is not UTF-8: {error}"))),
    }
}
