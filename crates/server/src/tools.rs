//! Tools that the model may call: `tools` and `tool_choice`, what the model is told of them, and the grammar of calls.
//!
//! How a call is written is the model's ([`ToolFormat`]). Whoever writes calls in a form that is not known here, or was
//! trained on none, is told of the tools and of the first form in words of ours.

use engine::GrammarSource;
use model::chat::ToolFormat;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::grammars::{Grammars, Wanted};

/// Tools that one request may offer.
const MAX_TOOLS: usize = 128;

/// Bytes of a function's name.
const MAX_NAME: usize = 64;

/// What the model may do with the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// Answer or call.
    Auto,
    /// Call.
    Required,
}

#[derive(Debug, Clone)]
struct Function {
    name: String,
    description: Option<String>,
    parameters: Value,
    strict: bool,
}

/// The tools of a request.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    /// As the client sent them, for templates.
    raw: Vec<Value>,
    functions: Vec<Function>,
    choice: Choice,
    /// Which of the functions must be called.
    named: Option<usize>,
    parallel: bool,
}

impl Tools {
    /// Takes the fields about tools; `None` where there are none, or none may be called.
    ///
    /// # Errors
    /// 400 naming the field for what is no tool and for what is not supported.
    pub(crate) fn take(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        let choice = fields.value("tool_choice");
        let raw = fields.take("tools", "a list of tools", |value| value.as_array().cloned())?.unwrap_or_default();
        if raw.len() > MAX_TOOLS {
            let message = format!("tools has {} members; it may have at most {MAX_TOOLS}", raw.len());
            return Err(ApiError::field("tools", message));
        }
        let functions = raw.iter().enumerate().map(|(index, tool)| function(index, tool));
        let functions = functions.collect::<Result<Vec<_>, _>>()?;
        if let Some(twice) =
            functions.iter().enumerate().find(|(at, f)| functions[..*at].iter().any(|g| g.name == f.name))
        {
            return Err(ApiError::field("tools", format!("tools has the function '{}' twice", twice.1.name)));
        }
        let Some((choice, named)) = tool_choice(choice.as_ref(), &functions)? else { return Ok(None) };
        Ok((!raw.is_empty()).then_some(Self { raw, functions, choice, named, parallel }))
    }

    /// The tools for a template that knows what to do with them.
    pub(crate) fn for_template(&self) -> Value {
        Value::from(self.raw.clone())
    }

    /// What a model is told whose template does not tell it.
    pub(crate) fn in_words(&self) -> String {
        let mut text = "You can call functions. Each of these lines describes one:\n".to_owned();
        for Function { name, description, parameters, .. } in &self.functions {
            let mut line = Map::new();
            line.insert("name".into(), name.as_str().into());
            line.extend(description.iter().map(|text| ("description".into(), text.as_str().into())));
            line.insert("parameters".into(), parameters.clone());
            text.push_str(&Value::Object(line).to_string());
            text.push('\n');
        }
        text.push_str(
            "To call a function, write its name and its arguments in this form, and nothing after it:\n\
             <tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": {\"ARGUMENT\": VALUE}}\n</tool_call>\n\
             The result follows in a <tool_response> block.",
        );
        text
    }

    /// The grammar of an answer with calls in this form. `form` is what the answer without calls must be like.
    ///
    /// # Errors
    /// 400 for a form that cannot be told from a call.
    pub(crate) fn grammar(&self, format: ToolFormat, form: Option<Wanted>) -> Result<Wanted, ApiError> {
        let answer = match (self.choice, form) {
            (Choice::Required, _) => None,
            (Choice::Auto, None) => Some(None),
            (Choice::Auto, Some(Wanted { source: GrammarSource::JsonSchema { schema, lenient }, .. }))
                if format == ToolFormat::Tagged =>
            {
                Some(Some(GrammarSource::json_for_lark(&schema, lenient)))
            }
            (Choice::Auto, Some(Wanted { field, .. })) => {
                return Err(ApiError::unsupported(field, "not supported together with these tools"));
            }
        };
        let mut lark = match format {
            ToolFormat::Tagged => self.tagged(answer),
            ToolFormat::Bare => bare(answer.is_some()),
        };
        let (open, close) = match format {
            ToolFormat::Tagged => ("arguments", "}\n</tool_call>"),
            ToolFormat::Bare => ("parameters", "}"),
        };
        let callable = |index: usize| self.named.is_none_or(|named| named == index);
        let functions: Vec<_> = self.functions.iter().enumerate().filter(|(index, _)| callable(*index)).collect();
        let names: Vec<String> = functions.iter().map(|(index, _)| format!("call_{index}")).collect();
        lark.push_str(&format!("body: {}\n", names.join(" | ")));
        for (index, function) in functions {
            let break_line = if format == ToolFormat::Tagged { "\n" } else { "" };
            let head = json!(format!("{break_line}{{\"name\": \"{}\", \"{open}\": ", function.name));
            let schema = GrammarSource::json_for_lark(&function.parameters, !function.strict);
            lark.push_str(&format!("call_{index}: {head} arguments_{index} {}\n", json!(close)));
            lark.push_str(&format!("arguments_{index}: %json {schema}\n"));
        }
        Ok(Wanted { field: "tools", source: GrammarSource::Lark(lark) })
    }

    /// The rules for where calls stand: behind free text, in place of JSON, or alone.
    fn tagged(&self, answer: Option<Option<String>>) -> String {
        let more = if self.parallel && self.named.is_none() { " more*" } else { "" };
        let more_rule = if more.is_empty() { "" } else { "more: \"\\n<tool_call>\" body\n" };
        let start = match answer {
            None => format!("start: \"<tool_call>\" body{more}\n"),
            Some(None) => format!("start: FREE | head body{more}\nFREE: /(?s:.*)/\nhead[lazy]: FREE \"<tool_call>\"\n"),
            Some(Some(schema)) => {
                format!("start: answer | \"<tool_call>\" body{more}\nanswer: %json {schema}\n")
            }
        };
        start + more_rule
    }

    /// Compiles the grammar of calls.
    ///
    /// # Errors
    /// 400 naming the tool whose parameters are at fault.
    pub(crate) async fn compile(&self, wanted: Wanted, grammars: &Grammars) -> Result<engine::Grammar, ApiError> {
        let error = match grammars.try_compile(wanted.source).await? {
            Ok(grammar) => return Ok(grammar),
            Err(error) => error,
        };
        for (index, function) in self.functions.iter().enumerate() {
            let source = GrammarSource::JsonSchema { schema: function.parameters.clone(), lenient: !function.strict };
            if let Err(error) = grammars.try_compile(source).await? {
                let field = format!("tools[{index}].function.parameters");
                return Err(ApiError::field(&field, format!("{field}: {error}")));
            }
        }
        Err(ApiError::field(wanted.field, format!("{}: {error}", wanted.field)))
    }
}

/// An answer that begins like an object is a call.
fn bare(free: bool) -> String {
    if free { "start: FREE | body\nFREE: /(?s:[^{].*)?/\n".to_owned() } else { "start: body\n".to_owned() }
}

fn function(index: usize, tool: &Value) -> Result<Function, ApiError> {
    let at = |member: &str| format!("tools[{index}]{member}");
    let wrong = |member: &str, wanted: &str| ApiError::field(&at(member), format!("{} must be {wanted}", at(member)));
    match tool["type"].as_str() {
        Some("function") => {}
        Some(kind) => {
            return Err(ApiError::unsupported(&at(".type"), &format!("tools of type '{kind}' are not supported")));
        }
        None => return Err(wrong(".type", "\"function\"")),
    }
    let function = tool["function"].as_object().ok_or_else(|| wrong(".function", "an object"))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let name = function.get("name").and_then(Value::as_str);
    let name = name.filter(|name| (1..=MAX_NAME).contains(&name.len()) && name.chars().all(plain));
    let name = name.ok_or_else(|| {
        wrong(".function.name", &format!("1 to {MAX_NAME} letters, digits, underscores, dashes and dots"))
    })?;
    let present = |member: &str| function.get(member).filter(|value| !value.is_null());
    let parameters = match present("parameters") {
        None => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        Some(parameters) => object_schema(parameters)
            .ok_or_else(|| wrong(".function.parameters", "a JSON schema of type \"object\""))?,
    };
    let strict = present("strict").map_or(Some(false), Value::as_bool);
    Ok(Function {
        name: name.to_owned(),
        description: present("description").and_then(Value::as_str).map(str::to_owned),
        parameters,
        strict: strict.ok_or_else(|| wrong(".function.strict", "true or false"))?,
    })
}

/// The schema as one that allows nothing but objects; `None` if it allows none.
fn object_schema(schema: &Value) -> Option<Value> {
    let mut members = schema.as_object()?.clone();
    match members.get("type") {
        None => {
            members.insert("type".into(), "object".into());
        }
        Some(kind) if kind == "object" => {}
        Some(_) => return None,
    }
    Some(Value::Object(members))
}

/// What is to be done with the tools and the one that must be called; `None` where none may be.
fn tool_choice(choice: Option<&Value>, functions: &[Function]) -> Result<Option<(Choice, Option<usize>)>, ApiError> {
    let field = "tool_choice";
    let choice = match choice {
        None => return Ok(Some((Choice::Auto, None))),
        Some(choice) => choice,
    };
    match choice.as_str() {
        Some("none") => return Ok(None),
        Some("auto") => return Ok(Some((Choice::Auto, None))),
        Some("required") if functions.is_empty() => {
            return Err(ApiError::field(field, "tool_choice is \"required\", and there are no tools"));
        }
        Some("required") => return Ok(Some((Choice::Required, None))),
        _ => {}
    }
    let name = choice["function"]["name"].as_str().filter(|_| choice["type"] == "function");
    let Some(name) = name else {
        let forms =
            "it must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
        return Err(ApiError::unsupported(field, forms));
    };
    match functions.iter().position(|function| function.name == name) {
        Some(named) => Ok(Some((Choice::Required, Some(named)))),
        None => Err(ApiError::field(field, format!("tool_choice names '{name}', which is not among the tools"))),
    }
}
