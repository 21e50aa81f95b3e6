//! Metadata of a GGUF file: string keys, typed values, and accessors whose errors name the key.

use std::collections::BTreeMap;

use super::GgufError;

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Text. Bytes that are not UTF-8 were replaced: single strings are descriptions, and no reason to refuse a model.
    Str(String),
    Array(Array),
}

/// An array value; all elements have one type.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    /// Strings, all UTF-8: they are vocabularies, where a replaced byte would be another token.
    Str(Vec<String>),
    Nested(Vec<Array>),
}

impl Value {
    /// The integer, whatever its width.
    fn int(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Type and value as an error message says them.
    fn describe(&self) -> String {
        match self {
            Value::U8(_) | Value::U16(_) | Value::U32(_) | Value::U64(_) => {
                format!("the unsigned integer {}", self.int().unwrap_or_default())
            }
            Value::I8(_) | Value::I16(_) | Value::I32(_) | Value::I64(_) => {
                format!("the integer {}", self.int().unwrap_or_default())
            }
            Value::F32(v) => format!("the number {v}"),
            Value::F64(v) => format!("the number {v}"),
            Value::Bool(v) => format!("the boolean {v}"),
            Value::Str(_) => "a string".into(),
            Value::Array(a) => a.describe(),
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::Str(v) => v.len(),
            Array::Nested(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn describe(&self) -> String {
        let of = match self {
            Array::U8(_) | Array::U16(_) | Array::U32(_) | Array::U64(_) => "unsigned integers",
            Array::I8(_) | Array::I16(_) | Array::I32(_) | Array::I64(_) => "integers",
            Array::F32(_) | Array::F64(_) => "numbers",
            Array::Bool(_) => "booleans",
            Array::Str(_) => "strings",
            Array::Nested(_) => "arrays",
        };
        format!("an array of {} {of}", self.len())
    }

    /// The integers, when all fit into 32 bits.
    fn i32s(&self) -> Option<Vec<i32>> {
        fn fit<T: Copy + TryInto<i32>>(v: &[T]) -> Option<Vec<i32>> {
            v.iter().map(|&x| x.try_into().ok()).collect()
        }
        match self {
            Array::U8(v) => fit(v),
            Array::I8(v) => fit(v),
            Array::U16(v) => fit(v),
            Array::I16(v) => fit(v),
            Array::U32(v) => fit(v),
            Array::I32(v) => Some(v.clone()),
            Array::U64(v) => fit(v),
            Array::I64(v) => fit(v),
            _ => None,
        }
    }
}

/// All metadata of one file.
///
/// Every accessor comes twice: `x(key)` where the key must be there, `opt_x(key)` where it need not; a value of the wrong
/// type is an error in both.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    file: String,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    pub(super) fn new(file: &str) -> Metadata {
        Metadata { file: file.into(), values: BTreeMap::new() }
    }

    /// False when the key was there already.
    pub(super) fn insert(&mut self, key: String, value: Value) -> bool {
        self.values.insert(key, value).is_none()
    }

    /// What errors call the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// All keys with their values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(k, v)| (k.as_str(), v))
    }

    fn opt<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        pick(value).map(Some).ok_or_else(|| GgufError::WrongType {
            file: self.file.clone(),
            key: key.into(),
            found: value.describe(),
            wanted,
        })
    }

    fn need<T>(&self, key: &str, found: Option<T>) -> Result<T, GgufError> {
        found.ok_or_else(|| GgufError::Missing { file: self.file.clone(), key: key.into() })
    }

    /// A string that need not be there.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.opt(key, "a string", |v| match v {
            Value::Str(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<&str, GgufError> {
        self.need(key, self.opt_str(key)?)
    }

    /// An integer of any width that fits into `u32`, that need not be there.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.opt(key, "an unsigned 32-bit integer", |v| v.int()?.try_into().ok())
    }

    /// An integer of any width that fits into `u32`.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.need(key, self.opt_u32(key)?)
    }

    /// A float that need not be there; 64-bit floats are rounded to 32.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.opt(key, "a floating point number", |v| match *v {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// A float.
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        self.need(key, self.opt_f32(key)?)
    }

    /// A boolean that need not be there.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.opt(key, "a boolean", |v| match *v {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        self.need(key, self.opt_bool(key)?)
    }

    /// An array of strings that need not be there.
    pub fn opt_strings(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.opt(key, "an array of strings", |v| match v {
            Value::Array(Array::Str(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<&[String], GgufError> {
        self.need(key, self.opt_strings(key)?)
    }

    /// An array of integers that all fit into `i32`, that need not be there.
    pub fn opt_i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.opt(key, "an array of 32-bit integers", |v| match v {
            Value::Array(array) => array.i32s(),
            _ => None,
        })
    }

    /// An array of integers that all fit into `i32`.
    pub fn i32s(&self, key: &str) -> Result<Vec<i32>, GgufError> {
        self.need(key, self.opt_i32s(key)?)
    }

    /// An array of floats that need not be there; 64-bit floats are rounded to 32.
    pub fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.opt(key, "an array of floating point numbers", |v| match v {
            Value::Array(Array::F32(v)) => Some(v.clone()),
            Value::Array(Array::F64(v)) => Some(v.iter().map(|&x| x as f32).collect()),
            _ => None,
        })
    }

    /// An array of floats.
    pub fn f32s(&self, key: &str) -> Result<Vec<f32>, GgufError> {
        self.need(key, self.opt_f32s(key)?)
    }
}
