//! A machine for the pickles of state dicts: it makes numbers, texts, lists, and what a tensor is and where it lies, and
//! calls nothing (the words are those of Python's `pickletools`).

use std::collections::HashMap;

use super::{KINDS, Kind};

/// Bytes of a pickle, at most: some 200 go to a tensor.
const MAX_BYTES: usize = 32 << 20;
/// Objects that a pickle makes, at most.
const MAX_OBJECTS: usize = 1 << 21;
/// Lists that are begun within each other, at most.
const MAX_DEPTH: usize = 64;
/// Dimensions of a tensor, at most.
const MAX_DIMS: usize = 8;

/// What a tensor looks at: numbers of one kind in an entry of the archive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Storage<'a> {
    pub(super) kind: Kind,
    /// Its entry is `data/KEY`.
    pub(super) key: &'a str,
    pub(super) numbers: usize,
}

/// A tensor in a storage. Offset and strides count numbers.
#[derive(Debug, Clone)]
pub(super) struct Strided<'a> {
    pub(super) storage: Storage<'a>,
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// A function or class that a state dict needs.
#[derive(Debug, Clone, Copy)]
enum Callee {
    /// `torch._utils._rebuild_tensor_v2`
    Tensor,
    /// `torch._utils._rebuild_parameter`
    Parameter,
    /// `collections.OrderedDict`
    Dict,
    /// A class of storages.
    Storage(Kind),
}

/// Something on the stack. Others are named by their number, so that what is in itself harms nobody.
#[derive(Debug)]
enum Object<'a> {
    /// Nothing, a truth value or a fraction: what a state dict has beside the tensors, and nobody looks at.
    Other,
    Int(i64),
    Text(&'a str),
    /// A list or tuple.
    List(Vec<usize>),
    Dict(Vec<(usize, usize)>),
    Callee(Callee),
    Storage(Storage<'a>),
    Tensor(Strided<'a>),
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    objects: Vec<Object<'a>>,
    stack: Vec<usize>,
    /// How long the stack was when each open list was begun.
    marks: Vec<usize>,
    memo: HashMap<u32, usize>,
}

/// The tensors of a state dict, by name.
///
/// # Errors
/// What is wrong with the pickle, or what it asks for that a state dict does not need.
pub(super) fn state_dict(bytes: &[u8]) -> Result<Vec<(&str, Strided<'_>)>, String> {
    if bytes.len() > MAX_BYTES {
        return Err(format!("has {} bytes, and may have {MAX_BYTES}", bytes.len()));
    }
    let (objects, stack, marks, memo) = (Vec::new(), Vec::new(), Vec::new(), HashMap::new());
    let mut machine = Machine { bytes, at: 0, objects, stack, marks, memo };
    let result = machine.run().map_err(|problem| format!("byte {}: {problem}", machine.at.saturating_sub(1)))?;
    machine.tensors(result)
}

impl<'a> Machine<'a> {
    /// Runs to the end: the number of what is left.
    fn run(&mut self) -> Result<usize, String> {
        loop {
            let word = self.byte()?;
            if word == b'.' {
                return self.pop();
            }
            self.step(word)?;
        }
    }

    fn step(&mut self, word: u8) -> Result<(), String> {
        match word {
            // What follows is of a protocol, or so many bytes long: both show anyway.
            0x80 => self.take(1).map(drop),
            0x95 => self.take(8).map(drop),
            b'N' | 0x88 | 0x89 => self.push(Object::Other),
            b'G' => self.take(8).and_then(|_| self.push(Object::Other)),
            b'K' | b'M' | b'J' | 0x8a => self.number(word),
            0x8c => self.byte().and_then(|len| self.text(len.into())),
            b'X' => self.u32().and_then(|len| self.text(len as usize)),
            b')' | b']' => self.push(Object::List(Vec::new())),
            b'}' => self.push(Object::Dict(Vec::new())),
            b'(' if self.marks.len() < MAX_DEPTH => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'(' => Err(format!("begins more than {MAX_DEPTH} lists within each other")),
            b't' => self.since_mark().and_then(|items| self.push(Object::List(items))),
            0x85..=0x87 => self.tuple(usize::from(word - 0x84)),
            b'a' => self.pop().and_then(|item| self.append(&[item])),
            b'e' => self.since_mark().and_then(|items| self.append(&items)),
            b's' => self.pop().and_then(|value| self.pop().and_then(|key| self.insert(&[key, value]))),
            b'u' => self.since_mark().and_then(|items| self.insert(&items)),
            b'q' | b'r' | 0x94 => self.remember(word),
            b'h' => self.byte().and_then(|name| self.recall(name.into())),
            b'j' => self.u32().and_then(|name| self.recall(name)),
            b'c' => self.line().and_then(|module| self.line().and_then(|name| self.callee(module, name))),
            0x93 => self.named_callee(),
            b'Q' => self.storage(),
            b'R' => self.call(),
            b'b' => self.build(),
            other => Err(format!("the word 0x{other:02x} has no place in a state dict")),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let bytes = self.at.checked_add(len).and_then(|end| self.bytes.get(self.at..end)).ok_or("ends too early")?;
        self.at += len;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.take(4).map(|bytes| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte)))
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let len = rest.iter().position(|&byte| byte == b'\n').ok_or("ends within a name")?;
        let line = self.take(len + 1)?;
        std::str::from_utf8(&line[..len]).map_err(|_| "a name is no text".into())
    }

    fn push(&mut self, object: Object<'a>) -> Result<(), String> {
        if self.objects.len() >= MAX_OBJECTS {
            return Err(format!("makes more than {MAX_OBJECTS} objects"));
        }
        self.stack.push(self.objects.len());
        self.objects.push(object);
        Ok(())
    }

    fn pop(&mut self) -> Result<usize, String> {
        let open = self.marks.last().copied().unwrap_or(0);
        // What lies below an open list is not at hand.
        let top = (self.stack.len() > open).then(|| self.stack.pop()).flatten();
        top.ok_or_else(|| "takes what is not there".into())
    }

    fn since_mark(&mut self) -> Result<Vec<usize>, String> {
        let mark = self.marks.pop().ok_or("ends a list that was not begun")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn tuple(&mut self, len: usize) -> Result<(), String> {
        let mut items = (0..len).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        self.push(Object::List(items))
    }

    /// A whole number of the size that the word says.
    fn number(&mut self, word: u8) -> Result<(), String> {
        let len = match word {
            b'K' => 1,
            b'M' => 2,
            b'J' => 4,
            _ => usize::from(self.byte()?),
        };
        if len > 8 {
            return Err("a number has more than 64 bits".into());
        }
        let bytes = self.take(len)?;
        let value = bytes.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        // The two longer ones have a sign.
        let unused = if matches!(word, b'K' | b'M') || len == 0 { 0 } else { 64 - 8 * len };
        self.push(Object::Int((value << unused) as i64 >> unused))
    }

    fn text(&mut self, len: usize) -> Result<(), String> {
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| "a text is no UTF-8")?;
        self.push(Object::Text(text))
    }

    fn append(&mut self, items: &[usize]) -> Result<(), String> {
        match self.stack.last().map(|&top| &mut self.objects[top]) {
            Some(Object::List(list)) => list.extend_from_slice(items),
            _ => return Err("adds to what is no list".into()),
        }
        Ok(())
    }

    fn insert(&mut self, items: &[usize]) -> Result<(), String> {
        let (pairs, []) = items.as_chunks::<2>() else { return Err("has a key without a value".into()) };
        match self.stack.last().map(|&top| &mut self.objects[top]) {
            Some(Object::Dict(dict)) => dict.extend(pairs.iter().map(|&[key, value]| (key, value))),
            _ => return Err("sets a key of what is no dict".into()),
        }
        Ok(())
    }

    fn remember(&mut self, word: u8) -> Result<(), String> {
        let name = match word {
            b'q' => self.byte()?.into(),
            b'r' => self.u32()?,
            _ => self.memo.len() as u32,
        };
        let top = *self.stack.last().ok_or("remembers what is not there")?;
        self.memo.insert(name, top);
        Ok(())
    }

    fn recall(&mut self, name: u32) -> Result<(), String> {
        let object = *self.memo.get(&name).ok_or_else(|| format!("recalls {name}, which was not remembered"))?;
        if self.stack.len() >= MAX_OBJECTS {
            return Err(format!("has more than {MAX_OBJECTS} objects at once"));
        }
        self.stack.push(object);
        Ok(())
    }

    /// What a name means, if it is one that a state dict needs.
    fn callee(&mut self, module: &str, name: &str) -> Result<(), String> {
        let callee = match (module, name) {
            ("torch._utils", "_rebuild_tensor_v2") => Some(Callee::Tensor),
            ("torch._utils", "_rebuild_parameter") => Some(Callee::Parameter),
            ("collections", "OrderedDict") => Some(Callee::Dict),
            ("torch", class) => KINDS.into_iter().find(|kind| kind.class == class).map(Callee::Storage),
            _ => None,
        };
        let callee = callee.ok_or_else(|| {
            format!(
                "asks for {module}.{name}, which is refused: the file has more than plain tensors, so save a state dict"
            )
        })?;
        self.push(Object::Callee(callee))
    }

    fn named_callee(&mut self) -> Result<(), String> {
        let (name, module) = (self.pop()?, self.pop()?);
        match (&self.objects[module], &self.objects[name]) {
            (&Object::Text(module), &Object::Text(name)) => self.callee(module, name),
            _ => Err("asks for what is no name".into()),
        }
    }

    /// From what PyTorch keeps outside the pickle: ("storage", class, key, device, numbers).
    fn storage(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let unknown = || "names no storage of PyTorch".to_owned();
        let Object::List(parts) = &self.objects[id] else { return Err(unknown()) };
        let [what, class, key, _, numbers] = parts[..] else { return Err(unknown()) };
        let storage = match [what, class, key, numbers].map(|part| &self.objects[part]) {
            [
                Object::Text("storage"),
                &Object::Callee(Callee::Storage(kind)),
                &Object::Text(key),
                &Object::Int(numbers),
            ] => {
                let numbers = usize::try_from(numbers).map_err(|_| format!("a storage has {numbers} numbers"))?;
                Storage { kind, key, numbers }
            }
            _ => return Err(unknown()),
        };
        self.push(Object::Storage(storage))
    }

    fn call(&mut self) -> Result<(), String> {
        let (args, callee) = (self.pop()?, self.pop()?);
        let Object::Callee(callee) = self.objects[callee] else { return Err("calls what is no function".into()) };
        let Object::List(args) = &self.objects[args] else { return Err("calls without a list of arguments".into()) };
        let made = match (callee, &args[..]) {
            (Callee::Dict, []) => Object::Dict(Vec::new()),
            // Then whether it has a gradient, hooks, and in newer files what else was said of it.
            (
                Callee::Tensor,
                &[storage, offset, shape, strides, _, _] | &[storage, offset, shape, strides, _, _, _],
            ) => Object::Tensor(self.strided([storage, offset, shape, strides])?),
            (Callee::Parameter, &[tensor, _, _]) => match &self.objects[tensor] {
                Object::Tensor(tensor) => Object::Tensor(tensor.clone()),
                _ => return Err("a parameter is no tensor".into()),
            },
            (callee, args) => return Err(format!("calls {callee:?} with {} arguments", args.len())),
        };
        self.push(made)
    }

    fn strided(&self, [storage, offset, shape, strides]: [usize; 4]) -> Result<Strided<'a>, String> {
        let (&Object::Storage(storage), Object::List(shape), Object::List(strides)) =
            (&self.objects[storage], &self.objects[shape], &self.objects[strides])
        else {
            return Err("a tensor has no storage, shape or strides".into());
        };
        if shape.len() > MAX_DIMS || shape.len() != strides.len() {
            return Err(format!("a tensor has {} dimensions and {} strides", shape.len(), strides.len()));
        }
        let number = |&at: &usize| match self.objects[at] {
            Object::Int(number) => usize::try_from(number).ok(),
            _ => None,
        };
        let numbers = |list: &[usize]| list.iter().map(number).collect::<Option<Vec<usize>>>();
        let unsound = "a tensor has a shape, strides or an offset that are no counts";
        let (offset, shape, strides) =
            number(&offset).zip(numbers(shape)).zip(numbers(strides)).map(|((o, s), t)| (o, s, t)).ok_or(unsound)?;
        Ok(Strided { storage, offset, shape, strides })
    }

    /// What is said of a dict beside its items (versions of modules) is passed over.
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        match self.stack.last().map(|&top| &self.objects[top]) {
            Some(Object::Dict(_)) => Ok(()),
            _ => Err("gives attributes to what is no dict".into()),
        }
    }

    fn tensors(&self, result: usize) -> Result<Vec<(&'a str, Strided<'a>)>, String> {
        let Object::Dict(items) = &self.objects[result] else { return Err("holds no state dict".into()) };
        let mut tensors = HashMap::with_capacity(items.len());
        for &(key, value) in items {
            let Object::Text(name) = self.objects[key] else { return Err("a tensor has no name".into()) };
            let Object::Tensor(tensor) = &self.objects[value] else {
                return Err(format!("{name:?} is no tensor: save the state dict of the model alone"));
            };
            if tensors.insert(name, tensor.clone()).is_some() {
                return Err(format!("the tensor {name:?} is there twice"));
            }
        }
        Ok(tensors.into_iter().collect())
    }
}
