//! In which form a template's model calls tools: found out by showing the template a call.

use serde_json::{Value, json};

use super::{ChatTemplate, RenderOptions};

/// How calls of tools are written in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>`, an object with `name` and `arguments` on a line of its own, `</tool_call>`: Hermes, Qwen.
    Tagged,
    /// The answer is nothing but an object with `name` and `parameters`: Llama 3.
    Bare,
}

/// Words that no template has.
const NAME: &str = "probe_of_tool_name";
const DESCRIPTION: &str = "probe of tool description";

impl ChatTemplate {
    /// The form in which this template writes calls, or `None` if it leaves tools out or has a form of its own.
    pub fn tool_format(&self) -> Option<ToolFormat> {
        let parameters = json!({ "type": "object", "properties": { "x": { "type": "integer" } } });
        let function = json!({ "name": NAME, "description": DESCRIPTION, "parameters": parameters });
        let call = json!({ "name": NAME, "arguments": { "x": 1 } });
        let messages = [
            json!({ "role": "user", "content": "a" }),
            json!({ "role": "assistant", "content": "", "tool_calls": [
                { "id": "call00001", "type": "function", "function": call }] }),
            json!({ "role": "tool", "tool_call_id": "call00001", "content": "b" }),
        ];
        let tools = Value::from(vec![json!({ "type": "function", "function": function })]);
        let options = RenderOptions { tools: Some(tools), ..RenderOptions::default() };
        let text = self.render_values(&messages, &options).ok()?;
        if !text.contains(DESCRIPTION) {
            return None;
        }
        let has = |member: &str| text.contains(&format!("{{\"name\": \"{NAME}\", \"{member}\": {{\"x\": 1}}}}"));
        let tagged = text.contains("<tool_call>\n") && text.contains("\n</tool_call>");
        match (tagged, has("arguments"), has("parameters")) {
            (true, true, _) => Some(ToolFormat::Tagged),
            (false, _, true) => Some(ToolFormat::Bare),
            _ => None,
        }
    }
}
