//! Rotary position embedding.

use crate::Isa;
use crate::lanes::{self, Kernel, LANES, Lanes};

/// Which numbers of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeLayout {
    /// `i` with `i + half`, as Hugging Face checkpoints have it.
    Halves,
    /// `2i` with `2i + 1`, as the original checkpoints and GGUF files of the Llama family have it.
    Pairs,
}

/// A rotary embedding: `2 * inv_freq.len()` leading numbers of a head turn, the others stay.
#[derive(Debug, Clone)]
pub struct Rope {
    inv_freq: Vec<f32>,
    scale: f32,
    layout: RopeLayout,
}

impl Rope {
    /// `inv_freq`: the angle that each pair turns by per position; `scale`: factor on cosines and sines (1 without
    /// attention scaling).
    pub fn new(inv_freq: Vec<f32>, scale: f32, layout: RopeLayout) -> Rope {
        Rope { inv_freq, scale, layout }
    }

    /// Numbers that [`Rope::angles`] writes: cosine and sine of each pair.
    pub fn angles_len(&self) -> usize {
        2 * self.inv_freq.len()
    }

    /// Writes the cosines `[half]` and then the sines `[half]` of a position to `out`. Once per row: every head of every
    /// layer uses the same. The angle is rounded to f32 before its cosine is taken, as checkpoints were trained with.
    ///
    /// # Panics
    /// When `out` is not [`Rope::angles_len`] long.
    pub fn angles(&self, position: u32, out: &mut [f32]) {
        assert!(out.len() == self.angles_len(), "{} angles in {}", self.angles_len(), out.len());
        let (cos, sin) = out.split_at_mut(self.inv_freq.len());
        for ((&freq, cos), sin) in self.inv_freq.iter().zip(cos).zip(sin) {
            let angle = position as f32 * freq;
            *cos = angle.cos() * self.scale;
            *sin = angle.sin() * self.scale;
        }
    }

    /// Turns one head `[head_dim]` by the angles of its position.
    ///
    /// # Panics
    /// When `angles` is not [`Rope::angles_len`] long, or the head is shorter.
    pub fn rotate(&self, isa: Isa, head: &mut [f32], angles: &[f32]) {
        assert!(angles.len() == self.angles_len(), "{} angles in {}", self.angles_len(), angles.len());
        assert!(head.len() >= angles.len(), "{} angles for a head of {}", angles.len(), head.len());
        let (cos, sin) = angles.split_at(self.inv_freq.len());
        let head = &mut head[..angles.len()];
        match self.layout {
            RopeLayout::Halves => lanes::run(isa, Halves { head, cos, sin }),
            RopeLayout::Pairs => lanes::run(isa, Pairs { head, cos, sin }),
        }
    }
}

/// One pair turned.
#[inline(always)]
fn turn((a, b): (f32, f32), cos: f32, sin: f32) -> (f32, f32) {
    (a * cos - b * sin, b * cos + a * sin)
}

struct Halves<'a> {
    head: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Halves<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let (first, second) = self.head.split_at_mut(self.cos.len());
        let (first, first_tail) = first.as_chunks_mut::<LANES>();
        let (second, second_tail) = second.as_chunks_mut::<LANES>();
        let (cos, cos_tail) = self.cos.as_chunks::<LANES>();
        let (sin, sin_tail) = self.sin.as_chunks::<LANES>();
        for (((first, second), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            let (a, b, cos, sin) = (s.load(first), s.load(second), s.load(cos), s.load(sin));
            s.store(s.sub(s.mul(a, cos), s.mul(b, sin)), first);
            s.store(s.mul_add(a, sin, s.mul(b, cos)), second);
        }
        for (((first, second), &cos), &sin) in first_tail.iter_mut().zip(second_tail).zip(cos_tail).zip(sin_tail) {
            (*first, *second) = turn((*first, *second), cos, sin);
        }
    }
}

struct Pairs<'a> {
    head: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Pairs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let (head, head_tail) = self.head.as_chunks_mut::<LANES>();
        let (cos, cos_tail) = self.cos.as_chunks::<{ LANES / 2 }>();
        let (sin, sin_tail) = self.sin.as_chunks::<{ LANES / 2 }>();
        for ((head, cos), sin) in head.iter_mut().zip(cos).zip(sin) {
            s.store(s.rotate_pairs(s.load(head), cos, sin), head);
        }
        for (([a, b], &cos), &sin) in head_tail.as_chunks_mut::<2>().0.iter_mut().zip(cos_tail).zip(sin_tail) {
            (*a, *b) = turn((*a, *b), cos, sin);
        }
    }
}
