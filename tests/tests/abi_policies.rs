//! The sixteen policies of `msa-core/docs/ABI.md`, one test or more each, named after its number.
#![allow(clippy::unwrap_used)] // In the functions beside the tests too: a failure there fails the test.

mod abi_policies {
    mod border;
    mod calls;
    mod exceptions;
    mod loading;
}
