//! Reads a P4-16 program: as much of the language as `p4/sequencer.p4` speaks, and panics at what
//! is beyond it.

use std::collections::BTreeMap;

/// An expression.
#[derive(Clone, Debug)]
pub enum Expression {
    /// Its value, and its width in bits if it says one.
    Number(u128, Option<u32>),
    /// `a.b.c`, by its parts with dots.
    Name(String),
    Call(String, Vec<Expression>),
    /// The width of what is looked at.
    Lookahead(u32),
    Cast(u32, Box<Expression>),
    Binary(&'static str, Box<Expression>, Box<Expression>),
    List(Vec<Expression>),
}

#[derive(Clone, Debug)]
pub enum Statement {
    Declare(String, u32),
    Assign(String, Expression),
    Call(String, Vec<Expression>),
    If(Expression, Vec<Statement>, Vec<Statement>),
}

/// Names and widths in bits, in their order.
pub type Fields = Vec<(String, u32)>;

#[derive(Debug)]
pub struct Action {
    pub parameters: Fields,
    pub body: Vec<Statement>,
}

#[derive(Debug)]
pub struct Table {
    pub keys: Vec<String>,
    pub actions: Vec<String>,
    pub default: (String, Vec<Expression>),
    pub size: usize,
}

#[derive(Debug, Default)]
pub struct Control {
    pub actions: BTreeMap<String, Action>,
    pub tables: BTreeMap<String, Table>,
    /// Width and number of words.
    pub registers: BTreeMap<String, (u32, Expression)>,
    pub counters: BTreeMap<String, Expression>,
    pub apply: Vec<Statement>,
}

/// A state of the parser, and where it goes: what is looked at, and for which values.
#[derive(Debug)]
pub struct State {
    pub body: Vec<Statement>,
    pub select: Vec<Expression>,
    /// The values are empty for `default`.
    pub cases: Vec<(Vec<Expression>, String)>,
}

#[derive(Debug, Default)]
pub struct Program {
    pub constants: BTreeMap<String, (u32, Expression)>,
    pub headers: BTreeMap<String, Fields>,
    /// Of each struct the names of its members and of their types.
    pub structs: BTreeMap<String, Vec<(String, String)>>,
    pub states: BTreeMap<String, State>,
    pub controls: BTreeMap<String, Control>,
    /// What the switch is made of: the parser, and the controls in their order.
    pub main: Vec<String>,
}

/// Reads the whole program.
pub fn read(text: &str) -> Program {
    let mut reader = Reader { tokens: tokens(text), at: 0 };
    let mut program = Program::default();
    while reader.at < reader.tokens.len() {
        let word = reader.next();
        match word.as_str() {
            "const" => {
                let (width, name) = (reader.bits(), reader.next());
                reader.expect("=");
                let value = reader.expression();
                reader.expect(";");
                program.constants.insert(name, (width, value));
            }
            "header" => {
                let name = reader.next();
                let fields = reader.members(Reader::bits);
                program.headers.insert(name, fields);
            }
            "struct" => {
                let name = reader.next();
                let fields = reader.members(Reader::type_name);
                program.structs.insert(name, fields);
            }
            "parser" => {
                let _name = reader.next();
                reader.skip_parameters();
                reader.expect("{");
                while !reader.take("}") {
                    reader.expect("state");
                    let name = reader.next();
                    program.states.insert(name, reader.state());
                }
            }
            "control" => {
                let name = reader.next();
                reader.skip_parameters();
                program.controls.insert(name, reader.control());
            }
            "V1Switch" => {
                reader.expect("(");
                while !reader.take(")") {
                    program.main.push(reader.next());
                    reader.expect("(");
                    reader.expect(")");
                    reader.take(",");
                }
                reader.expect("main");
                reader.expect(";");
            }
            other => panic!("what is {other}?"),
        }
    }
    program
}

fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut rest = line.split("//").next().unwrap_or_default().trim();
        while let Some(first) = rest.chars().next() {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let length = if word(first) {
                rest.find(|c| !word(c)).unwrap_or(rest.len())
            } else {
                let twos = ["==", "!=", "||", "&&"];
                1 + usize::from(twos.iter().any(|two| rest.starts_with(two)))
            };
            tokens.push(rest[..length].to_owned());
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

struct Reader {
    tokens: Vec<String>,
    at: usize,
}

impl Reader {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", String::as_str)
    }

    fn next(&mut self) -> String {
        self.at += 1;
        self.tokens.get(self.at - 1).expect("the program ends too early").clone()
    }

    fn take(&mut self, token: &str) -> bool {
        let taken = self.peek() == token;
        self.at += usize::from(taken);
        taken
    }

    fn expect(&mut self, token: &str) {
        let before = self.tokens[self.at.saturating_sub(6)..self.at].join(" ");
        assert!(self.take(token), "{token} is missing after {before}, at {}", self.peek());
    }

    fn number(&mut self) -> u128 {
        let token = self.next();
        number(&token).unwrap_or_else(|| panic!("{token} is no number")).0
    }

    /// `bit<N>`
    fn bits(&mut self) -> u32 {
        self.expect("bit");
        self.expect("<");
        let width = self.number() as u32;
        self.expect(">");
        width
    }

    fn type_name(&mut self) -> String {
        if self.peek() == "bit" { self.bits().to_string() } else { self.next() }
    }

    /// Members of a header or a struct.
    fn members<T>(&mut self, read: impl Fn(&mut Reader) -> T) -> Vec<(String, T)> {
        let mut members = Vec::new();
        self.expect("{");
        while !self.take("}") {
            let kind = read(self);
            members.push((self.next(), kind));
            self.expect(";");
        }
        members
    }

    fn skip_parameters(&mut self) {
        self.expect("(");
        while !self.take(")") {
            self.at += 1;
        }
    }

    /// `a.b.c`
    fn path(&mut self) -> String {
        let mut path = self.next();
        while self.peek() == "." {
            self.at += 1;
            path = format!("{path}.{}", self.next());
        }
        path
    }

    fn list(&mut self, end: &str) -> Vec<Expression> {
        let mut list = Vec::new();
        while !self.take(end) {
            list.push(self.expression());
            self.take(",");
        }
        list
    }

    fn expression(&mut self) -> Expression {
        self.binary(&[&["||"], &["&&"], &["==", "!="], &["+", "-"]])
    }

    fn binary(&mut self, levels: &[&[&'static str]]) -> Expression {
        let Some((operators, tighter)) = levels.split_first() else { return self.primary() };
        let mut left = self.binary(tighter);
        while let Some(&operator) = operators.iter().find(|&&operator| self.peek() == operator) {
            self.at += 1;
            let right = self.binary(tighter);
            left = Expression::Binary(operator, Box::new(left), Box::new(right));
        }
        left
    }

    fn primary(&mut self) -> Expression {
        if self.take("(") {
            if self.peek() == "bit" {
                let width = self.bits();
                self.expect(")");
                return Expression::Cast(width, Box::new(self.primary()));
            }
            let mut inside = self.list(")");
            let one = inside.len() == 1;
            return if one { inside.remove(0) } else { Expression::List(inside) };
        }
        if self.take("{") {
            return Expression::List(self.list("}"));
        }
        if let Some((value, width)) = number(self.peek()) {
            self.at += 1;
            return Expression::Number(value, width);
        }
        let path = self.path();
        if path == "packet.lookahead" {
            self.expect("<");
            let width = self.bits();
            for token in [">", "(", ")"] {
                self.expect(token);
            }
            return Expression::Lookahead(width);
        }
        if self.take("(") {
            return Expression::Call(path, self.list(")"));
        }
        Expression::Name(path)
    }

    fn block(&mut self) -> Vec<Statement> {
        let mut statements = Vec::new();
        self.expect("{");
        while !self.take("}") {
            statements.push(self.statement());
        }
        statements
    }

    fn statement(&mut self) -> Statement {
        if self.take("if") {
            self.expect("(");
            let condition = self.expression();
            self.expect(")");
            let then = self.block();
            let otherwise = if !self.take("else") {
                Vec::new()
            } else if self.peek() == "if" {
                vec![self.statement()]
            } else {
                self.block()
            };
            return Statement::If(condition, then, otherwise);
        }
        let statement = if self.peek() == "bit" {
            let width = self.bits();
            Statement::Declare(self.next(), width)
        } else {
            let path = self.path();
            if self.take("=") {
                Statement::Assign(path, self.expression())
            } else {
                self.expect("(");
                Statement::Call(path, self.list(")"))
            }
        };
        self.expect(";");
        statement
    }

    fn state(&mut self) -> State {
        let mut body = Vec::new();
        self.expect("{");
        while !self.take("transition") {
            body.push(self.statement());
        }
        let (mut select, mut cases) = (Vec::new(), Vec::new());
        if self.take("select") {
            self.expect("(");
            select = self.list(")");
            self.expect("{");
            while !self.take("}") {
                let values = if self.take("default") {
                    Vec::new()
                } else {
                    match self.expression() {
                        Expression::List(values) => values,
                        one => vec![one],
                    }
                };
                self.expect(":");
                cases.push((values, self.next()));
                self.expect(";");
            }
        } else {
            cases.push((Vec::new(), self.next()));
            self.expect(";");
        }
        self.expect("}");
        State { body, select, cases }
    }

    fn control(&mut self) -> Control {
        let mut control = Control::default();
        self.expect("{");
        while !self.take("}") {
            match self.next().as_str() {
                "register" => {
                    self.expect("<");
                    let width = self.bits();
                    self.expect(">");
                    self.expect("(");
                    let size = self.list(")").remove(0);
                    control.registers.insert(self.next(), (width, size));
                    self.expect(";");
                }
                "counter" => {
                    self.expect("(");
                    let size = self.list(")").remove(0);
                    control.counters.insert(self.next(), size);
                    self.expect(";");
                }
                "action" => {
                    let name = self.next();
                    let mut parameters = Vec::new();
                    self.expect("(");
                    while !self.take(")") {
                        let width = self.bits();
                        parameters.push((self.next(), width));
                        self.take(",");
                    }
                    let body = self.block();
                    control.actions.insert(name, Action { parameters, body });
                }
                "table" => {
                    let name = self.next();
                    control.tables.insert(name, self.table());
                }
                "apply" => control.apply = self.block(),
                other => panic!("what is {other} in a control?"),
            }
        }
        control
    }

    fn table(&mut self) -> Table {
        let none = ("NoAction".to_owned(), Vec::new());
        let mut table = Table { keys: vec![], actions: vec![], default: none, size: 0 };
        self.expect("{");
        while !self.take("}") {
            let property = self.next();
            self.expect("=");
            match property.as_str() {
                "key" => {
                    self.expect("{");
                    while !self.take("}") {
                        table.keys.push(self.path());
                        for token in [":", "exact", ";"] {
                            self.expect(token);
                        }
                    }
                }
                "actions" => {
                    self.expect("{");
                    while !self.take("}") {
                        table.actions.push(self.next());
                        self.expect(";");
                    }
                }
                "default_action" => {
                    let name = self.next();
                    self.expect("(");
                    table.default = (name, self.list(")"));
                    self.expect(";");
                }
                "size" => {
                    table.size = self.number() as usize;
                    self.expect(";");
                }
                other => panic!("what is {other} of a table?"),
            }
        }
        table
    }
}

/// `7`, `0x1f` or `13w0`, with its width.
fn number(token: &str) -> Option<(u128, Option<u32>)> {
    if !token.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if let Some(digits) = token.strip_prefix("0x") {
        return Some((u128::from_str_radix(digits, 16).ok()?, None));
    }
    match token.split_once('w') {
        Some((width, value)) => Some((value.parse().ok()?, Some(width.parse().ok()?))),
        None => Some((token.parse().ok()?, None)),
    }
}
