//! A message that decodes encodes to the same message.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(message) = vsr::Message::decode(bytes.clone()) {
        let mut again = Vec::new();
        message.encode(&mut again);
        assert_eq!(vsr::Message::decode(Bytes::from(again)), Ok(message));
    }
    if let Ok(message) = smr::ClientMessage::decode(bytes.clone()) {
        let mut again = Vec::new();
        message.encode(&mut again);
        assert_eq!(smr::ClientMessage::decode(Bytes::from(again)), Ok(message));
    }
    let _ = smr::Reply::decode(bytes);
});
