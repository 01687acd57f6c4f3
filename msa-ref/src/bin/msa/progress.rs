//! A progress bar for people; nothing where the output goes to a file or a pipe.

use std::borrow::Cow;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The bar of one run, one step for each stage. It vanishes when dropped, also on an error.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of `steps` steps on standard error if that is a terminal, else one that never draws.
    pub(crate) fn on_stderr(steps: u64) -> Self {
        Self::new(steps, std::io::stderr().is_terminal())
    }

    /// Names the stage that begins now.
    pub(crate) fn begin(&self, stage: impl Into<Cow<'static, str>>) {
        self.bar.set_message(stage);
    }

    /// Counts a finished stage.
    pub(crate) fn finish_one(&self) {
        self.bar.inc(1);
    }

    fn new(steps: u64, visible: bool) -> Self {
        let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        // A template that did not parse would leave indicatif's own style, which shows the same numbers.
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        Self { bar }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

const TEMPLATE: &str = "{bar:32} {pos}/{len} {msg} {elapsed}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_drawn_into_a_pipe() {
        let progress = Progress::new(3, false);
        progress.begin("index_score");
        progress.finish_one();
        assert!(progress.bar.is_hidden());
        assert_eq!((progress.bar.position(), progress.bar.message().as_str()), (1, "index_score"));
    }

    #[test]
    fn the_template_parses() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }

    #[test]
    fn a_bar_on_standard_error_is_hidden_unless_that_is_a_terminal() {
        let bar = &Progress::on_stderr(1).bar;
        assert!(bar.is_hidden() || std::io::stderr().is_terminal());
    }
}
