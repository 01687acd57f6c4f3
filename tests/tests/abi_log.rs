//! What a plugin logs reaches the host. In a process of its own: a subscriber is for the whole process.
#![allow(clippy::unwrap_used)] // In the functions beside the tests too: a failure there fails the test.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use msa_core::loader;
use msa_tests::plugin_files::test_plugin;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(String, Level, String)>>>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let metadata = event.metadata();
        self.0.lock().unwrap().push((metadata.target().to_owned(), *metadata.level(), text.0));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

#[test]
fn what_a_plugin_logs_reaches_the_tracing_of_its_host() {
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    loader::open(&test_plugin(), "backend = echo").unwrap();
    let lines = lines.0.lock().unwrap();
    let entered = lines.iter().find(|(target, _, _)| target == "msa::plugin");
    let (_, level, text) = entered.unwrap_or_else(|| panic!("nothing came across: {lines:?}"));
    assert_eq!(*level, Level::DEBUG);
    assert!(text.contains("plugin entered") && text.contains("options=backend = echo"), "{text}");
}
