// Requests by kind: path and body. Four bytes of text are about one token.
const FILLER = 'lorem ipsum '.repeat(2400);

function text(tokens) {
  return FILLER.slice(0, tokens * 4);
}

function chat(shape, tokens, model) {
  const body = {
    model,
    messages: [{ role: 'user', content: text(tokens) }],
    max_tokens: shape.cap_tokens,
  };
  if (shape.kind === 'stream') {
    body.stream = true;
    body.stream_options = { include_usage: true };
  }
  return { path: '/v1/chat/completions', body };
}

function completion(shape, tokens, model) {
  const body = { model, prompt: text(tokens), max_tokens: shape.cap_tokens };
  return { path: '/v1/completions', body };
}

// KServe v2. The input as NAME:DATATYPE:COLUMNS, its rows by the shape.
function infer(shape, model, input) {
  const [name, datatype, columns] = input.split(':');
  const cells = shape.rows * Number(columns);
  const tensor = {
    name,
    datatype,
    shape: [shape.rows, Number(columns)],
    data: new Array(cells).fill(datatype === 'BYTES' ? 'a' : 0),
  };
  return { path: `/v2/models/${model}/infer`, body: { inputs: [tensor] } };
}

export function ask(shape, tokens, model, input) {
  if (shape.kind === 'infer') return infer(shape, model, input);
  if (shape.kind === 'completion') return completion(shape, tokens, model);
  return chat(shape, tokens, model);
}
