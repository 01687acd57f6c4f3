use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::diagnosis::{Verdict, status};
use crate::abi::table::MsaDiag;
use crate::error::Error;

impl From<Error> for Verdict {
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

/// Runs the body of an exported function: nothing unwinds out of it, and whatever failed is in `diag` as text.
pub(super) fn guard(
    function: &'static str,
    diag: *mut MsaDiag,
    body: impl FnOnce() -> Result<(), Verdict>,
) -> u32 {
    // Whatever a panic left half done belongs to a device that is lost from then on.
    let verdict = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return status::OK,
        Ok(Err(verdict)) => verdict,
        Err(payload) => Verdict::plain(status::PANIC, format!("{function}: {}", message(payload))),
    };
    // SAFETY: `diag` is null or valid by the contract of every function of the table.
    unsafe { verdict.write(diag) };
    verdict.status
}

/// The text of a panic. The payload is not dropped: dropping it could panic again.
fn message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    std::mem::forget(payload);
    text.unwrap_or_else(|| "a panic without text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::diagnosis::Diagnosis;

    #[test]
    fn panics_become_a_status_with_their_text() {
        let mut diagnosis = Diagnosis::new();
        assert_eq!(guard("f", diagnosis.as_mut(), || panic!("at {}", 7)), status::PANIC);
        assert_eq!(diagnosis.text(), "f: at 7");
        assert_eq!(guard("f", diagnosis.as_mut(), || std::panic::panic_any(7)), status::PANIC);
        assert_eq!(diagnosis.text(), "f: a panic without text");
        assert_eq!(guard("f", std::ptr::null_mut(), || panic!("nobody listens")), status::PANIC);
    }
}
