//! The report of a run: what each stage took, and how its results agree with the expected ones. As fixed-width text
//! or, with the same numbers in base units, as JSON.

use msa_core::arithmetic::Named;
use serde::Serialize;

/// What `msa run` prints.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Name of the case.
    pub(crate) case: String,
    /// Name of the device.
    pub(crate) device: String,
    /// Stages in the order in which they ran.
    pub(crate) stages: Vec<StageRow>,
    /// Comparisons with expected tensors; empty if the file has none.
    pub(crate) agreement: Vec<AgreementRow>,
}

impl Report {
    /// Whether every stage ran in the reference's own arithmetic, whose distance from the equations is bounded.
    pub(crate) fn is_f32(&self) -> bool {
        self.stages.iter().all(|stage| stage.arithmetic == Named::F32.name())
    }
}

/// One stage of the step.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StageRow {
    /// Operation, `index_score`.
    pub(crate) stage: String,
    /// Kernel variant, `index_score.q16k16.cpu`.
    pub(crate) variant: String,
    /// Arithmetic of its plan, `f32`.
    pub(crate) arithmetic: String,
    /// Wall-clock time in seconds.
    pub(crate) seconds: f64,
    /// What the time was spent on.
    pub(crate) work: Work,
}

/// The work that bounds a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Work {
    /// Bytes read and written.
    Bytes(u64),
    /// Floating-point operations, a multiply-add being two.
    Flops(u64),
}

/// One comparison with an expected tensor.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AgreementRow {
    /// Name of the tensor.
    pub(crate) quantity: String,
    /// Elements, or lists, that were compared.
    pub(crate) compared: u64,
    /// Those outside the bound.
    pub(crate) mismatches: u64,
    /// Absolute difference where it is largest relative to its bound; `None` where only equality counts.
    pub(crate) largest_error: Option<f64>,
    /// Bound at that place; `None` where only equality counts or nothing is judged.
    pub(crate) bound: Option<f64>,
    /// The outcome.
    pub(crate) verdict: Verdict,
}

/// Outcome of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// Nothing outside the bound.
    Agrees,
    /// Something outside the bound.
    Differs,
    /// Nothing to compare.
    Skipped,
    /// A distance that is printed, not judged.
    Reported,
}

impl Report {
    /// Whether no comparison found a difference.
    pub(crate) fn agrees(&self) -> bool {
        self.agreement.iter().all(|row| row.verdict != Verdict::Differs)
    }

    /// The report as lines of text, for a person.
    pub(crate) fn to_text(&self) -> String {
        // The case's name is text of a file: an escape sequence in it must not reach the terminal.
        let case: String = self.case.chars().flat_map(char::escape_debug).collect();
        let mut text = format!("{case} on {}\n\n", self.device);
        text.push_str(&stage_table(&self.stages));
        if !self.agreement.is_empty() {
            text.push_str("\nagreement\n");
            text.push_str(&agreement_table(&self.agreement));
        }
        text
    }

    /// The report as one JSON object. Times are seconds, work is bytes or operations, an infinite error is null.
    ///
    /// # Errors
    /// None that these types can cause.
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

fn stage_table(rows: &[StageRow]) -> String {
    let mut table = Table::new(&[
        ("stage", Align::Left),
        ("variant", Align::Left),
        ("time", Align::Right),
        ("work", Align::Right),
        ("rate", Align::Right),
    ]);
    for row in rows {
        let (stage, variant) = (row.stage.clone(), row.variant.clone());
        table.push(vec![
            stage,
            variant,
            time_text(row.seconds),
            row.work.text(),
            row.work.rate_text(row.seconds),
        ]);
    }
    table.to_text()
}

fn agreement_table(rows: &[AgreementRow]) -> String {
    let mut table = Table::new(&[
        ("quantity", Align::Left),
        ("compared", Align::Right),
        ("mismatches", Align::Right),
        ("largest error", Align::Right),
        ("bound", Align::Right),
        ("verdict", Align::Left),
    ]);
    for row in rows {
        table.push(vec![
            row.quantity.clone(),
            row.compared.to_string(),
            row.mismatches.to_string(),
            error_text(row.largest_error),
            error_text(row.bound),
            row.verdict.text().to_owned(),
        ]);
    }
    table.to_text()
}

impl Work {
    fn text(self) -> String {
        match self {
            Self::Bytes(bytes) => scaled(bytes as f64, &BYTE_UNITS),
            Self::Flops(operations) => scaled(operations as f64, &FLOP_UNITS),
        }
    }

    fn rate_text(self, seconds: f64) -> String {
        let (amount, units) = match self {
            Self::Bytes(bytes) => (bytes as f64, &BYTE_RATE_UNITS),
            Self::Flops(operations) => (operations as f64, &FLOP_RATE_UNITS),
        };
        if seconds > 0.0 { scaled(amount / seconds, units) } else { NOTHING.to_owned() }
    }
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Differs => "DIFFERS",
            Self::Skipped => "skipped",
            Self::Reported => "not judged",
        }
    }
}

pub(crate) fn time_text(seconds: f64) -> String {
    scaled(seconds * 1e6, &TIME_UNITS)
}

fn error_text(error: Option<f64>) -> String {
    error.map_or_else(
        || NOTHING.to_owned(),
        |error| if error == 0.0 { "0".to_owned() } else { format!("{error:.2e}") },
    )
}

/// A value in the first unit that keeps it below the next one, with three significant digits.
pub(crate) fn scaled(value: f64, units: &[(&str, f64)]) -> String {
    if !value.is_finite() {
        return NOTHING.to_owned();
    }
    let mut value = value;
    for (unit, next) in units {
        let rounded = three_digits(value);
        if rounded.parse::<f64>().is_ok_and(|rounded| rounded < *next) || next.is_infinite() {
            return format!("{rounded} {unit}");
        }
        value /= next;
    }
    NOTHING.to_owned()
}

fn three_digits(value: f64) -> String {
    // 9.996 has to become 10.0, not 10.00: the digits are counted after rounding.
    let two = format!("{value:.2}");
    if two.len() <= "9.99".len() {
        return two;
    }
    let one = format!("{value:.1}");
    if one.len() <= "99.9".len() { one } else { format!("{value:.0}") }
}

/// Columns as wide as their widest entry, two spaces apart, no space at a line's end.
pub(crate) struct Table {
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

impl Table {
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        let heads = columns.iter().map(|(head, _)| (*head).to_owned()).collect();
        Self { aligns: columns.iter().map(|(_, align)| *align).collect(), rows: vec![heads] }
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    pub(crate) fn to_text(&self) -> String {
        let width = |column: usize| {
            let entries = self.rows.iter().filter_map(|row| row.get(column));
            entries.map(|entry| entry.chars().count()).max().unwrap_or_default()
        };
        let columns: Vec<(Align, usize)> =
            self.aligns.iter().enumerate().map(|(column, align)| (*align, width(column))).collect();
        let pad = |(entry, (align, width)): (&String, &(Align, usize))| match align {
            Align::Left => format!("{entry:<width$}"),
            Align::Right => format!("{entry:>width$}"),
        };
        let line = |row: &Vec<String>| {
            let entries: Vec<String> = row.iter().zip(&columns).map(pad).collect();
            format!("{}\n", entries.join("  ").trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

/// Stands where there is no number.
pub(crate) const NOTHING: &str = "-";

/// Units from the smallest, each with the factor to the next one.
const TIME_UNITS: [(&str, f64); 3] = [("us", 1e3), ("ms", 1e3), ("s", f64::INFINITY)];
pub(crate) const BYTE_UNITS: [(&str, f64); 4] =
    [("B", 1024.0), ("KiB", 1024.0), ("MiB", 1024.0), ("GiB", f64::INFINITY)];
pub(crate) const FLOP_UNITS: [(&str, f64); 5] =
    [("FLOP", 1e3), ("kFLOP", 1e3), ("MFLOP", 1e3), ("GFLOP", 1e3), ("TFLOP", f64::INFINITY)];
pub(crate) const BYTE_RATE_UNITS: [(&str, f64); 5] =
    [("B/s", 1e3), ("kB/s", 1e3), ("MB/s", 1e3), ("GB/s", 1e3), ("TB/s", f64::INFINITY)];
pub(crate) const FLOP_RATE_UNITS: [(&str, f64); 5] =
    [("FLOP/s", 1e3), ("kFLOP/s", 1e3), ("MFLOP/s", 1e3), ("GFLOP/s", 1e3), ("TFLOP/s", f64::INFINITY)];

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let stage = |stage: &str, variant: &str, seconds, work| StageRow {
            stage: stage.to_owned(),
            variant: variant.to_owned(),
            arithmetic: "f32".to_owned(),
            seconds,
            work,
        };
        let agreement = |quantity: &str, mismatches, largest_error, bound, verdict| AgreementRow {
            quantity: quantity.to_owned(),
            compared: 3072,
            mismatches,
            largest_error,
            bound,
            verdict,
        };
        Report {
            case: "m3_prefill_small".to_owned(),
            device: "ref".to_owned(),
            stages: vec![
                stage("index_score", "index_score.q16k16.cpu", 0.012_345, Work::Flops(1_207_959_552)),
                stage("select", "select.cpu", 0.000_098_7, Work::Bytes(147_456)),
            ],
            agreement: vec![
                agreement("block_indices", 0, None, None, Verdict::Agrees),
                agreement("out", 2, Some(0.001_25), Some(1e-5), Verdict::Differs),
            ],
        }
    }

    #[test]
    fn text() {
        let want = "\
m3_prefill_small on ref

stage        variant                    time        work          rate
index_score  index_score.q16k16.cpu  12.3 ms  1.21 GFLOP  97.9 GFLOP/s
select       select.cpu              98.7 us     144 KiB     1.49 GB/s

agreement
quantity       compared  mismatches  largest error    bound  verdict
block_indices      3072           0              -        -  agrees
out                3072           2        1.25e-3  1.00e-5  DIFFERS
";
        assert_eq!(report().to_text(), want);
        assert!(!report().agrees());
    }

    #[test]
    fn a_report_without_comparisons_has_no_section_for_them() {
        let report = Report { agreement: vec![], stages: vec![], ..report() };
        assert_eq!(report.to_text(), "m3_prefill_small on ref\n\nstage  variant  time  work  rate\n");
        assert!(report.agrees());
    }

    #[test]
    fn a_case_cannot_send_commands_to_the_terminal() {
        let report = Report { case: "a\u{1b}[2J\n".to_owned(), ..report() };
        assert!(report.to_text().starts_with("a\\u{1b}[2J\\n on ref\n"));
    }

    #[test]
    fn json() {
        let report = Report {
            stages: report().stages.split_off(1),
            agreement: report().agreement.split_off(1),
            ..report()
        };
        let want = r#"{
  "case": "m3_prefill_small",
  "device": "ref",
  "stages": [
    {
      "stage": "select",
      "variant": "select.cpu",
      "arithmetic": "f32",
      "seconds": 0.0000987,
      "work": {
        "bytes": 147456
      }
    }
  ],
  "agreement": [
    {
      "quantity": "out",
      "compared": 3072,
      "mismatches": 2,
      "largest_error": 0.00125,
      "bound": 0.00001,
      "verdict": "differs"
    }
  ]
}"#;
        assert_eq!(report.to_json().unwrap(), want);
    }

    #[test]
    fn units_change_where_the_rounded_number_reaches_the_next() {
        let times = [0.0, 1.234e-6, 9.996e-6, 99.96e-6, 999.4e-6, 999.6e-6, 0.5, 0.9996, 12.0, 4000.0];
        let want = [
            "0.00 us", "1.23 us", "10.0 us", "100 us", "999 us", "1.00 ms", "500 ms", "1.00 s", "12.0 s",
            "4000 s",
        ];
        assert_eq!(times.map(time_text), want);
        let bytes = [0, 1023, 1024, 1 << 20, 5 << 30, 3 << 40].map(|bytes| Work::Bytes(bytes).text());
        assert_eq!(bytes, ["0.00 B", "1023 B", "1.00 KiB", "1.00 MiB", "5.00 GiB", "3072 GiB"]);
        assert_eq!(Work::Bytes(4_640_000_000_000).rate_text(1.0), "4.64 TB/s");
        assert_eq!(Work::Flops(5).rate_text(0.0), "-");
        assert_eq!(Work::Flops(1500).text(), "1.50 kFLOP");
        assert_eq!(
            (time_text(f64::NAN), error_text(Some(0.0)), error_text(Some(f64::INFINITY))),
            ("-".into(), "0".into(), "inf".into())
        );
    }
}
