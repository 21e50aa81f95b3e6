//! What the programs share: which model to run and on what, progress on the terminal, files of prompts, the machine.
//!
//! The room for what stands between a command line and the libraries in more than one program. Its errors are for people
//! at a terminal (`anyhow`); no library may use it, and what a single program does may not enter.

pub mod load;
pub mod machine;
pub mod progress;
pub mod prompts;
