//! Any bytes of a client, cut anywhere, give the same commands as in one piece.
#![no_main]

use libfuzzer_sys::fuzz_target;

fn commands(pieces: &[&[u8]]) -> Vec<Vec<Vec<u8>>> {
    let mut parser = resp::Parser::new(resp::Limits::default());
    let (mut buffer, mut found) = (Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match parser.parse(&buffer) {
                Ok(Some(used)) => {
                    found.push(parser.command(&buffer).iter().map(<[u8]>::to_vec).collect());
                    buffer.drain(..used);
                }
                Ok(None) => break,
                Err(_) => return found,
            }
        }
    }
    found
}

fuzz_target!(|data: &[u8]| {
    let (cut, data) = data.split_first().map_or((0, data), |(&cut, rest)| (cut as usize, rest));
    let cut = cut.min(data.len());
    assert_eq!(commands(&[data]), commands(&[&data[..cut], &data[cut..]]));
});
