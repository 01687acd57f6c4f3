//! Which cases: exact lines, sets, random ones, filtered by operation.

use msa_core::op::OpKind;
use msa_tests::generate::{self, Draw};
use msa_tests::{Case, sets};

use crate::Failed;

/// Options that name cases.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Selection {
    /// Operations, a pattern with * and ?
    #[arg(short, long, default_value = "*", value_name = "GLOB")]
    op: String,
    /// An exact case line; may be given several times
    #[arg(short, long = "case", value_name = "LINE")]
    cases: Vec<String>,
    /// smoke, ci, full, emu, regress or a file of case lines; smoke if no case is named
    #[arg(short, long)]
    set: Option<String>,
    /// That many random cases: as many executed ones as the device takes, dealt over the cells of the hit table
    #[arg(long, value_name = "N")]
    random: Option<usize>,
    /// Seed of the random cases
    #[arg(long, default_value_t = 1701)]
    pub(crate) seed: u64,
}

/// Most random cases of a call.
const MAX_RANDOM: usize = 1 << 20;

impl Selection {
    /// The cases that are named: lines, then the set. Random ones are [`Selection::draws`].
    pub(crate) fn read(&self) -> Result<Vec<Case>, Failed> {
        self.check_pattern()?;
        let mut all: Vec<Case> = self.cases.iter().map(|line| line.parse()).collect::<Result<_, _>>()?;
        let default = (self.cases.is_empty() && self.random.is_none()).then_some("smoke");
        if let Some(set) = self.set.as_deref().or(default) {
            all.extend(sets::read(set)?);
        }
        all.retain(|case| self.takes(case.op));
        Ok(all)
    }

    /// The cases that are named, then the random ones as they are drawn first.
    pub(crate) fn read_all(&self) -> Result<Vec<Case>, Failed> {
        let mut all = self.read()?;
        all.extend(self.draws()?.unwrap_or_default().iter().map(|draw| draw.case(0)));
        Ok(all)
    }

    /// Places for random cases; `None` if none were asked for.
    pub(crate) fn draws(&self) -> Result<Option<Vec<Draw>>, Failed> {
        match self.random {
            Some(count) if count > MAX_RANDOM => Err(format!("--random: at most {MAX_RANDOM}").into()),
            count => Ok(count.map(|count| generate::draws(count, self.seed, |op| self.takes(op)))),
        }
    }

    /// True for the operations that are wanted.
    pub(crate) fn takes(&self, op: OpKind) -> bool {
        sets::matches(&self.op, op.name())
    }

    /// For the head line.
    pub(crate) fn describe(&self) -> String {
        let random = self.random.map(|n| format!("{n} random, seed {}", self.seed));
        let set = self.set.as_ref().map(|set| format!("set {set}"));
        let lines = (!self.cases.is_empty()).then(|| format!("{} given", self.cases.len()));
        let words: Vec<String> = [lines, set, random].into_iter().flatten().collect();
        if words.is_empty() { "set smoke".to_owned() } else { words.join(" + ") }
    }

    fn check_pattern(&self) -> Result<(), Failed> {
        let names = OpKind::ALL.map(OpKind::name);
        if names.iter().any(|name| sets::matches(&self.op, name)) {
            return Ok(());
        }
        Err(format!("--op: want one of {}, got {}", names.join(", "), self.op).into())
    }
}
