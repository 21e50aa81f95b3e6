//! Wide vectors as two registers, for the sets that have none of that width.

use super::{LANES, Vector, WIDE};

/// Two vectors of `S`.
#[derive(Clone, Copy)]
pub(super) struct Pair<S>(pub(super) S);

impl<S: Vector<Floats = [f32; LANES], Halves = [u16; LANES]>> Pair<S> {
    #[inline(always)]
    fn zip(self, a: [S::V; 2], b: [S::V; 2], f: impl Fn(S, S::V, S::V) -> S::V) -> [S::V; 2] {
        [f(self.0, a[0], b[0]), f(self.0, a[1], b[1])]
    }
}

impl<S: Vector<Floats = [f32; LANES], Halves = [u16; LANES]>> Vector for Pair<S> {
    const REGISTERS: usize = S::REGISTERS / 2;
    type V = [S::V; 2];
    type Floats = [f32; WIDE];
    type Halves = [u16; WIDE];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [self.0.splat(x); 2]
    }

    #[inline(always)]
    fn load(self, from: &[f32; WIDE]) -> Self::V {
        let (halves, _) = from.as_chunks::<LANES>();
        [self.0.load(&halves[0]), self.0.load(&halves[1])]
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; WIDE]) {
        let (halves, _) = to.as_chunks_mut::<LANES>();
        self.0.store(v[0], &mut halves[0]);
        self.0.store(v[1], &mut halves[1]);
    }

    #[inline(always)]
    fn load_f16(self, from: &[u16; WIDE]) -> Self::V {
        let (halves, _) = from.as_chunks::<LANES>();
        [self.0.load_f16(&halves[0]), self.0.load_f16(&halves[1])]
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        self.zip(a, b, S::add)
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        self.zip(a, b, S::sub)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        self.zip(a, b, S::mul)
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        self.zip(a, b, S::div)
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        [self.0.mul_add(a[0], b[0], c[0]), self.0.mul_add(a[1], b[1], c[1])]
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        self.zip(a, b, S::min)
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        self.zip(a, b, S::max)
    }

    #[inline(always)]
    fn exp2(self, n: Self::V) -> Self::V {
        [self.0.exp2(n[0]), self.0.exp2(n[1])]
    }
}
