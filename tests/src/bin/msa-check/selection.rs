//! Which cases: exact lines, sets, random ones, filtered by operation.

use msa_core::op::OpKind;
use msa_tests::generate::{self, Hits};
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
    /// That many random cases
    #[arg(long, value_name = "N")]
    random: Option<usize>,
    /// Seed of the random cases
    #[arg(long, default_value_t = 1701)]
    pub(crate) seed: u64,
}

/// Most random cases of a call.
const MAX_RANDOM: usize = 1 << 20;

impl Selection {
    /// The cases, in order: lines, set, random ones.
    pub(crate) fn read(&self) -> Result<Vec<Case>, Failed> {
        self.check_pattern()?;
        let mut all: Vec<Case> = self.cases.iter().map(|line| line.parse()).collect::<Result<_, _>>()?;
        let default = (self.cases.is_empty() && self.random.is_none()).then_some("smoke");
        if let Some(set) = self.set.as_deref().or(default) {
            all.extend(sets::read(set)?);
        }
        all.extend(self.random_cases()?);
        all.retain(|case| sets::matches(&self.op, case.op.name()));
        Ok(all)
    }

    /// What the random cases hit; `None` without any.
    pub(crate) fn hits(&self) -> Result<Option<Hits>, Failed> {
        Ok(self.random.map(|_| self.random_cases()).transpose()?.map(|cases| Hits::of(&cases)))
    }

    /// For the head line.
    pub(crate) fn describe(&self) -> String {
        let random = self.random.map(|n| format!("{n} random, seed {}", self.seed));
        let set = self.set.as_ref().map(|set| format!("set {set}"));
        let lines = (!self.cases.is_empty()).then(|| format!("{} given", self.cases.len()));
        let words: Vec<String> = [lines, set, random].into_iter().flatten().collect();
        if words.is_empty() { "set smoke".to_owned() } else { words.join(" + ") }
    }

    fn random_cases(&self) -> Result<Vec<Case>, Failed> {
        match self.random {
            Some(count) if count > MAX_RANDOM => Err(format!("--random: at most {MAX_RANDOM}").into()),
            count => Ok(generate::cases(count.unwrap_or(0), self.seed)),
        }
    }

    fn check_pattern(&self) -> Result<(), Failed> {
        let names = OpKind::ALL.map(OpKind::name);
        if names.iter().any(|name| sets::matches(&self.op, name)) {
            return Ok(());
        }
        Err(format!("--op: want one of {}, got {}", names.join(", "), self.op).into())
    }
}
