import java.time.Duration;
import java.util.Properties;
import java.util.Scanner;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * A Kafka Streams app, as a team has it: totals by customer, orders by minute, and visits, of the topic `ID-orders`.
 *
 * `java -cp JARS Shop.java BOOTSTRAP ID FOLDER GUARANTEE [windows]`. A line `dump STORE` on its input prints the rows
 * of a store, as interactive queries return them, and a line `END`. A negative amount deletes the customer's total.
 */
class Shop {
    static final Duration MINUTE = Duration.ofMinutes(1);

    public static void main(String[] args) throws Exception {
        var settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[3]);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        settings.put("auto.offset.reset", "earliest");
        var streams = new KafkaStreams(topology(args[1], args.length > 4), settings);
        streams.start();
        while (streams.state() != KafkaStreams.State.RUNNING) {
            Thread.sleep(50);
        }
        System.out.println("RUNNING");
        var lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            var words = lines.nextLine().split(" ");
            if (words[0].equals("dump")) {
                dump(streams, words[1]);
                System.out.println("END");
            }
        }
        streams.close(Duration.ofSeconds(10));
    }

    static org.apache.kafka.streams.Topology topology(String id, boolean windows) {
        var builder = new StreamsBuilder();
        KGroupedStream<String, Long> orders = builder
            .stream(id + "-orders", Consumed.with(Serdes.String(), Serdes.Long()))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.Long()));
        KTable<String, String> totals = orders.aggregate(
            () -> "",
            (customer, cents, total) -> {
                if (cents < 0) {
                    return null;
                }
                long[] old = parse(total);
                return "{\"orders\": " + (old[0] + 1) + ", \"cents\": " + (old[1] + cents) + "}";
            },
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("totals")
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.String()).withCachingDisabled());
        totals.toStream().to(id + "-totals", Produced.with(Serdes.String(), Serdes.String()));
        if (windows) {
            orders.windowedBy(TimeWindows.ofSizeWithNoGrace(MINUTE))
                .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("per-minute").withCachingDisabled())
                .toStream()
                .to(id + "-minutes", Produced.with(
                    WindowedSerdes.timeWindowedSerdeFrom(String.class, MINUTE.toMillis()), Serdes.Long()));
            // A fetch through the cache would visit every minute since 1970.
            orders.windowedBy(SessionWindows.ofInactivityGapWithNoGrace(MINUTE))
                .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("visits").withCachingDisabled());
        }
        return builder.build();
    }

    static long[] parse(String total) {
        if (total.isEmpty()) {
            return new long[] {0, 0};
        }
        var numbers = total.replaceAll("[^0-9,]", "").split(",");
        return new long[] {Long.parseLong(numbers[0]), Long.parseLong(numbers[1])};
    }

    static void dump(KafkaStreams streams, String store) {
        var out = new StringBuilder();
        if (store.equals("totals")) {
            var totals = streams.store(StoreQueryParameters.fromNameAndType(
                store, QueryableStoreTypes.<String, String>keyValueStore()));
            try (KeyValueIterator<String, String> rows = totals.all()) {
                rows.forEachRemaining(row -> line(out, row.key, row.value));
            }
        } else if (store.equals("per-minute")) {
            var minutes = streams.store(StoreQueryParameters.fromNameAndType(
                store, QueryableStoreTypes.<String, Long>windowStore()));
            try (var rows = minutes.all()) {
                rows.forEachRemaining(row -> line(out, row.key.key(), row.key.window().start(), row.value));
            }
        } else {
            var visits = streams.store(StoreQueryParameters.fromNameAndType(
                store, QueryableStoreTypes.<String, Long>sessionStore()));
            for (int customer = 0; customer < 50; customer++) {
                try (var rows = visits.fetch("c" + customer)) {
                    rows.forEachRemaining(row -> line(
                        out, row.key.key(), row.key.window().start(), row.key.window().end(), row.value));
                }
            }
        }
        System.out.print(out);
        System.out.flush();
    }

    static void line(StringBuilder out, Object... parts) {
        for (int part = 0; part < parts.length; part++) {
            out.append(part == 0 ? "" : "\t").append(parts[part]);
        }
        out.append('\n');
    }
}
