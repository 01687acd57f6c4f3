//! `msa-check list`.

use std::process::ExitCode;

use msa_tests::generate::cells;
use msa_tests::hits::Hits;
use msa_tests::sets;

use crate::Failed;
use crate::selection::Selection;

/// Options of `msa-check list`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    selection: Selection,
    /// The sets with their sizes instead of cases
    #[arg(long)]
    sets: bool,
    /// The hit table of the random cases instead of cases
    #[arg(long, requires = "random")]
    hits: bool,
}

/// Prints one case a line; opens no device.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    if options.sets {
        for (name, text) in sets::SETS {
            println!("{name:<8} {:>5} cases", sets::parse(text)?.len());
        }
    } else if let (true, Some(draws)) = (options.hits, options.selection.draws()?) {
        let mut hits = Hits::new(&cells(|op| options.selection.takes(op)));
        draws.iter().for_each(|draw| hits.add(&draw.case(0)));
        print!("{hits}");
        let misses = hits.misses();
        misses.iter().for_each(|miss| println!("below its floor: {miss}"));
        return Ok(ExitCode::from(u8::from(!misses.is_empty())));
    } else {
        options.selection.read_all()?.iter().for_each(|case| println!("{case}"));
    }
    Ok(ExitCode::SUCCESS)
}
