//! Situations from which other engines have come out with wrong answers under speculative decoding. In each, the answers
//! with drafts are to be those without, to the last bit of their log-probabilities.

mod company;
mod drafters;
mod ends;
mod memory;
mod sampling;
mod support;
