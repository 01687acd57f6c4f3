//! `tracing` events of the plugin as lines of the host's log callback.

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::abi::table::MsaLog;

/// Sends this library's events to `callback` until the process ends. The first host that asks is the one that hears.
pub(super) fn install(callback: MsaLog, context: *mut c_void) {
    // An error means that events already go somewhere, which stays as it is.
    let _ = tracing::subscriber::set_global_default(Bridge { callback, context });
}

struct Bridge {
    callback: MsaLog,
    context: *mut c_void,
}

// SAFETY: the ABI lets a plugin call the log from any thread until the process ends.
unsafe impl Send for Bridge {}
// SAFETY: as above.
unsafe impl Sync for Bridge {}

thread_local! {
    /// True while the callback runs: a host that is the same library as the plugin would log its own log.
    static LOGGING: Cell<bool> = const { Cell::new(false) };
}

impl Subscriber for Bridge {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if LOGGING.replace(true) {
            return;
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        let level = level_number(*event.metadata().level());
        // SAFETY: the callback and its context live for the process; the text lives for the call.
        unsafe { (self.callback)(self.context, level, line.0.as_ptr(), line.0.len() as u64) };
        LOGGING.set(false);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Level on the border: MSA_LOG_*.
fn level_number(level: Level) -> u32 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let blank = if self.0.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{blank}{value:?}"),
            name => write!(self.0, "{blank}{name}={value:?}"),
        };
    }
}
