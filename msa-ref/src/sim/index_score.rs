//! Index scores.
