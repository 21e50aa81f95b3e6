//! What a step of so many rows costs on this machine: measured once, before drafts are weighed against it.

use std::time::Instant;

use kernels::{KvFormat, Pool};
use kv::{KvCache, OutOfPages, Sequence};
use model::{ForwardError, Logits, Model, Segment, Visibility, Workspace};
use spec::{CostCurve, CurveError};

/// Rows that are measured: densely where drafts of one request are weighed, and to the sizes of full batches.
const ROWS: [usize; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64];

/// Tokens before the rows.
const CONTEXTS: [usize; 2] = [128, 1024];

/// Each time is the least of so many: what else the machine does only ever adds.
const REPEATS: usize = 3;

/// A curve that could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The model refuses the rows.
    #[error("the cost of a step cannot be measured: {0}")]
    Forward(#[from] ForwardError),
    /// The pages do not suffice.
    #[error("the cost of a step cannot be measured: {0}")]
    OutOfPages(#[from] OutOfPages),
    /// The times make no sense.
    #[error("the cost of a step cannot be measured: {0}")]
    Curve(#[from] CurveError),
}

/// Measures forwards of `model`, with the logits of all rows, on `pool`. Takes a second or less for a model whose
/// forward takes some milliseconds.
///
/// # Errors
/// [`MeasureError`]: for a model with a context of a few tokens only.
pub fn measure_cost(model: &Model, pool: &Pool, kv_format: KvFormat) -> Result<CostCurve, MeasureError> {
    let most = ROWS[ROWS.len() - 1];
    let fits = |&context: &usize| context + most < model.config().context;
    let mut contexts: Vec<usize> = CONTEXTS.into_iter().filter(fits).collect();
    if contexts.is_empty() {
        contexts.push(0);
    }
    let room = contexts[contexts.len() - 1] + most;
    let mut cache = KvCache::new(model.kv_layout(kv_format), room.div_ceil(kernels::PAGE));
    let mut sequence = Sequence::new();
    cache.reserve(&mut sequence, room)?;
    let (mut workspace, tokens) = (Workspace::new(), vec![0; most]);
    let mut seconds = Vec::new();
    for &start in &contexts {
        for rows in ROWS {
            let (visibility, logits) = (Visibility::Causal, Logits::All);
            let segment = Segment { sequence: &sequence, start, tokens: &tokens[..rows], visibility, logits };
            let mut least = f64::INFINITY;
            // Once more than counts: the first has the buffers to grow.
            for _ in 0..=REPEATS {
                let begin = Instant::now();
                model.forward(&mut workspace, pool, &mut cache, &[segment], &[])?;
                least = least.min(begin.elapsed().as_secs_f64());
            }
            seconds.push(least);
        }
    }
    Ok(CostCurve::new(&ROWS, &contexts, &seconds)?)
}
