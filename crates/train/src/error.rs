//! What can go wrong while a drafter is trained.

use std::path::Path;

use model::ForwardError;
use model::weights::WeightsError;

use crate::texts::WriteError;

/// A training that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A file cannot be read or written.
    #[error("{file}: cannot {what} the file: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        file: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file of this run is not what it should be.
    #[error("{file}: {problem}")]
    Broken {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An option has no sense for this target.
    #[error("{option} {problem}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A text cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The target's weights cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The target refuses a text.
    #[error("the target cannot read a text: {0}")]
    Forward(#[from] ForwardError),
    /// The arithmetic of the training fails.
    #[error("the training's arithmetic failed: {0}")]
    Arithmetic(#[from] candle_core::Error),
    /// Weights cannot be written as safetensors.
    #[error("{file}: {source}")]
    Safetensors {
        /// The file.
        file: String,
        /// What is wrong.
        source: safetensors::SafeTensorError,
    },
}

impl TrainError {
    pub(crate) fn io(what: &'static str, file: &Path, source: std::io::Error) -> TrainError {
        TrainError::Io { what, file: file.display().to_string(), source }
    }

    pub(crate) fn broken(file: &Path, problem: impl Into<String>) -> TrainError {
        TrainError::Broken { file: file.display().to_string(), problem: problem.into() }
    }

    pub(crate) fn option(option: &'static str, problem: impl Into<String>) -> TrainError {
        TrainError::Option { option, problem: problem.into() }
    }
}
