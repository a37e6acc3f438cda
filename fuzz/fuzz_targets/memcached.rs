//! Any bytes of a memcached client, cut anywhere, give the same commands as in one piece, and what
//! a meta command's answer repeats can be kept.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memcached::{Command, Echo, Front, Parser, Reply};

fn commands(pieces: &[&[u8]]) -> Vec<String> {
    let mut parser = Parser::new(1000);
    let (mut buffer, mut found) = (Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let used = match parser.parse(&buffer) {
                Front::Command(command, used) => {
                    if let Command::Fetch(_, Reply::Meta(echo)) = &command {
                        let packed = echo.pack();
                        let again = Echo::unpack(&packed).expect("it was packed");
                        assert_eq!(again.pack(), packed);
                    }
                    found.push(format!("{command:?}"));
                    used
                }
                Front::Refused(refusal, used) => {
                    found.push(format!("{refusal:?}"));
                    used
                }
                Front::Skipped(used) => used,
                Front::Short(_) => break,
                Front::Http => return found,
                Front::Lost(text) => {
                    found.push(text.to_owned());
                    return found;
                }
            };
            buffer.drain(..used);
        }
    }
    found
}

fuzz_target!(|data: &[u8]| {
    let (cut, data) = data.split_first().map_or((0, data), |(&cut, rest)| (cut as usize, rest));
    let cut = cut.min(data.len());
    assert_eq!(commands(&[data]), commands(&[&data[..cut], &data[cut..]]));
});
