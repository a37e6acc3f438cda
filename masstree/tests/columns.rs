//! Puts of several columns are atomic, and none is lost.

use std::thread;

use masstree::{Columns, Masstree, pin};

const PUTS: u64 = 20_000;

#[test]
fn readers_see_all_columns_of_a_put_or_none() {
    let tree = Masstree::<Columns>::new();
    let key = b"a key that goes on below";
    thread::scope(|scope| {
        let tree = &tree;
        let writers = [0, 1].map(|writer| {
            scope.spawn(move || {
                // Each writer has two columns of its own, which it puts together.
                let (first, second) = (writer, writer + 2);
                for i in 1..=PUTS {
                    let (guard, number) = (pin(), i.to_be_bytes());
                    let put = tree.put_columns(key, &[(first, &number), (second, &number)], &guard);
                    assert_eq!(put.column(first), number);
                }
            })
        });
        let reader = scope.spawn(move || {
            let mut last = 0;
            while last < 2 * PUTS {
                let guard = pin();
                let Some(value) = tree.get_ref(key, &guard) else { continue };
                assert!(value.version() >= last, "versions only grow");
                last = value.version();
                let seen: Vec<&[u8]> = value.subset([0, 2, 1, 3]).collect();
                assert!(seen[0] == seen[1] && seen[2] == seen[3], "half a put was seen");
                let puts = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_be_bytes);
                assert_eq!(puts(seen[0]) + puts(seen[2]), last, "a put was lost");
            }
        });
        writers.into_iter().for_each(|writer| writer.join().expect("no writer panics"));
        reader.join().expect("the reader does not panic");
    });
}
