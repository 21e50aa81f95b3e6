//! What the target says of a text: the hidden states that a draft reads, and the distributions that it should have.
//!
//! One forward of the target gives both. They are kept in a folder as long as it may grow, and computed anew beyond that,
//! with the same bits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;
use kernels::{Isa, KvFormat, Pool};
use kv::{KvCache, Salt};
use model::{Logits, Model, Segment, Tap, Visibility, Workspace};
use safetensors::{Dtype, SafeTensors};

use crate::TrainError;
use crate::files::write_tensors;
use crate::texts::{Origin, Text};

/// Tokens of a distribution that are kept: those beyond have some thousandths of it.
pub(crate) const TEACHER_TOKENS: usize = 32;

/// Rows of one forward; the bits do not depend on it.
const ROWS: usize = 128;

/// What the target says of a text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TextFeatures {
    /// Hidden states at all positions but the last, those of all taps side by side: `[tokens - 1, taps * hidden]`.
    pub(crate) hidden: Vec<f16>,
    /// Width of a position in it.
    pub(crate) width: usize,
    /// For each position from the answer's first token on, but for the last: the likeliest next tokens, likeliest first,
    /// `[answer - 1, TEACHER_TOKENS]`.
    pub(crate) tokens: Vec<u32>,
    /// Their probabilities among all tokens.
    pub(crate) probabilities: Vec<f32>,
}

/// Computes features, and keeps them.
pub(crate) struct FeatureStore {
    model: Arc<Model>,
    pool: Pool,
    isa: Isa,
    taps: Vec<Tap>,
    cache: KvCache,
    workspace: Workspace,
    dir: PathBuf,
    /// Bytes that the folder may still grow by.
    left: u64,
}

impl FeatureStore {
    /// Features from the target's `taps`, kept in the folder `dir` up to so many bytes.
    ///
    /// # Errors
    /// When the folder cannot be made or read.
    pub(crate) fn new(
        (model, pool, isa): (Arc<Model>, Pool, Isa),
        taps: Vec<Tap>,
        dir: &Path,
        bytes: u64,
    ) -> Result<FeatureStore, TrainError> {
        let io = |source| TrainError::io("use", dir, source);
        std::fs::create_dir_all(dir).map_err(io)?;
        let mut used = 0;
        for entry in std::fs::read_dir(dir).map_err(io)? {
            used += entry.and_then(|entry| entry.metadata()).map_err(io)?.len();
        }
        let cache = KvCache::new(model.kv_layout(KvFormat::F16), 0);
        let (workspace, dir) = (Workspace::new(), dir.to_owned());
        Ok(FeatureStore { model, pool, isa, taps, cache, workspace, dir, left: bytes.saturating_sub(used) })
    }

    /// The features of a text of which something is to be learned: its answer has two tokens at least.
    ///
    /// # Errors
    /// When the target cannot read the text, or a file cannot be read or written.
    pub(crate) fn of(&mut self, text: &Text) -> Result<TextFeatures, TrainError> {
        let origin = match text.origin {
            Origin::Prompts => "prompts",
            Origin::Own => "own",
        };
        let path = self.dir.join(format!("{origin}-{}.safetensors", text.number));
        if path.exists() {
            return self.read(&path, text);
        }
        let features = self.compute(text)?;
        let bytes = (2 * features.hidden.len() + 8 * features.tokens.len() + 1024) as u64;
        if bytes <= self.left {
            features.write(&path)?;
            self.left -= bytes;
        }
        Ok(features)
    }

    fn width(&self) -> usize {
        self.taps.len() * self.model.config().hidden
    }

    fn read(&self, path: &Path, text: &Text) -> Result<TextFeatures, TrainError> {
        let bytes = std::fs::read(path).map_err(|source| TrainError::io("read", path, source))?;
        let broken = |source| TrainError::Safetensors { file: path.display().to_string(), source };
        let file = SafeTensors::deserialize(&bytes).map_err(broken)?;
        let (positions, width) = (text.tokens.len() - 1, self.width());
        let rows = positions - text.prompt;
        let part = |name, shape: &[usize]| {
            let part = file.tensor(name).map_err(broken)?;
            let problem = format!("{name} has the shape {:?}, not {shape:?}: delete the file", part.shape());
            if part.shape() == shape { Ok(part.data()) } else { Err(TrainError::broken(path, problem)) }
        };
        let hidden = part("hidden", &[positions, width])?.as_chunks().0;
        let tokens = part("tokens", &[rows, TEACHER_TOKENS])?.as_chunks().0;
        let probabilities = part("probabilities", &[rows, TEACHER_TOKENS])?.as_chunks().0;
        Ok(TextFeatures {
            hidden: hidden.iter().map(|&bytes| f16::from_le_bytes(bytes)).collect(),
            width,
            tokens: tokens.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect(),
            probabilities: probabilities.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        })
    }

    fn compute(&mut self, text: &Text) -> Result<TextFeatures, TrainError> {
        let Self { model, pool, isa, taps, cache, workspace, .. } = self;
        let positions = text.tokens.len() - 1;
        let pages = positions.div_ceil(kernels::PAGE);
        if cache.total_pages() < pages {
            *cache = KvCache::new(model.kv_layout(KvFormat::F16), pages);
        }
        let mut sequence = cache.match_prefix(&[], &Salt::default());
        let room = cache.reserve(&mut sequence, positions);
        room.map_err(|error| TrainError::broken(&self.dir, format!("no room for a text: {error}")))?;
        let width = taps.len() * model.config().hidden;
        let mut features = TextFeatures {
            hidden: vec![f16::ZERO; positions * width],
            width,
            tokens: Vec::new(),
            probabilities: Vec::new(),
        };
        for start in (0..positions).step_by(ROWS) {
            let end = (start + ROWS).min(positions);
            let wanted: Vec<usize> = (start.max(text.prompt)..end).map(|position| position - start).collect();
            let tokens = &text.tokens[start..end];
            let (visibility, logits) = (Visibility::Causal, Logits::Rows(&wanted));
            let segment = Segment { sequence: &sequence, start, tokens, visibility, logits };
            let output = model.forward(workspace, pool, cache, &[segment], taps)?;
            let rows = &mut features.hidden[start * width..end * width];
            pool.for_each_row(rows, end - start, |row, out| {
                let hidden = width / taps.len();
                for (out, tap) in out.chunks_exact_mut(hidden).zip(output.taps) {
                    out.convert_from_f32_slice(&tap[row * hidden..(row + 1) * hidden]);
                }
            });
            let vocab = model.config().vocab;
            let mut teachers = vec![Vec::new(); wanted.len()];
            pool.for_each_mut(&mut teachers, |row, out| {
                *out = likeliest(*isa, &output.logits[row * vocab..(row + 1) * vocab]);
            });
            for (token, probability) in teachers.into_iter().flatten() {
                features.tokens.push(token);
                features.probabilities.push(probability);
            }
        }
        cache.free(sequence);
        Ok(features)
    }
}

/// The likeliest tokens and their probabilities, [`TEACHER_TOKENS`] of them: with a small vocabulary some are repeated with
/// probability 0.
fn likeliest(isa: Isa, logits: &[f32]) -> Vec<(u32, f32)> {
    let mut probabilities = logits.to_vec();
    kernels::softmax(isa, &mut probabilities);
    let mut all: Vec<(u32, f32)> = Vec::with_capacity(TEACHER_TOKENS + 1);
    let mut least = 0.0;
    for (token, probability) in (0..).zip(probabilities) {
        // Few are greater than what is there already: looking at all costs little more than reading them.
        if probability > least {
            let at = all.partition_point(|&(_, other)| other >= probability);
            all.insert(at, (token, probability));
            all.truncate(TEACHER_TOKENS);
            least = all.get(TEACHER_TOKENS - 1).map_or(0.0, |&(_, least)| least);
        }
    }
    all.resize(TEACHER_TOKENS, (0, 0.0));
    all
}

impl TextFeatures {
    /// Writes them to a file, whole or not at all.
    fn write(&self, path: &Path) -> Result<(), TrainError> {
        let hidden: Vec<u8> = self.hidden.iter().flat_map(|x| x.to_le_bytes()).collect();
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let probabilities: Vec<u8> = self.probabilities.iter().flat_map(|p| p.to_le_bytes()).collect();
        let rows = self.tokens.len() / TEACHER_TOKENS;
        write_tensors(
            path,
            None,
            vec![
                ("hidden".into(), Dtype::F16, vec![self.hidden.len() / self.width, self.width], hidden),
                ("tokens".into(), Dtype::U32, vec![rows, TEACHER_TOKENS], tokens),
                ("probabilities".into(), Dtype::F32, vec![rows, TEACHER_TOKENS], probabilities),
            ],
        )
    }
}
