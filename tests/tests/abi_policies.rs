//! The sixteen policies of `msa-core/docs/ABI.md`, one test or more each, named after its number.

mod abi_policies {
    mod border;
    mod calls;
    mod loading;
}
