import java.io.Serializable;
import java.util.*;
import org.apache.spark.api.java.function.*;
import org.apache.spark.sql.*;
import org.apache.spark.sql.streaming.*;

/** Queries with mapGroupsWithState and flatMapGroupsWithState: a bean as state, and a class that only Kryo knows. */
public class MapGroups {
  public static class Seen implements Serializable {
    private long count; private String last; private List<Long> values = new ArrayList<>();
    public long getCount() { return count; } public void setCount(long v) { count = v; }
    public String getLast() { return last; } public void setLast(String v) { last = v; }
    public List<Long> getValues() { return values; } public void setValues(List<Long> v) { values = v; }
  }
  static Dataset<Row> rows(SparkSession spark, String in) {
    return spark.readStream().schema("k string, v long, d double, t timestamp, o long").option("maxFilesPerTrigger", 1).json(in)
        .where("k is not null");
  }
  static void go(Dataset<?> q, String mode, String ck) throws Exception {
    StreamingQuery query = q.writeStream().outputMode(mode).format("noop").option("checkpointLocation", ck)
        .trigger(Trigger.AvailableNow()).start();
    query.awaitTermination();
  }
  public static void bean(SparkSession spark, String in, String ck) throws Exception {
    MapGroupsWithStateFunction<String, Row, Seen, Long> f = (key, it, state) -> {
      Seen seen = state.exists() ? state.get() : new Seen();
      while (it.hasNext()) { Row r = it.next(); seen.setCount(seen.getCount() + 1); seen.setLast(key); seen.getValues().add(r.getLong(1)); }
      if (seen.getCount() > 8) state.remove(); else state.update(seen);
      return seen.getCount();
    };
    go(rows(spark, in).groupByKey((MapFunction<Row, String>) r -> r.getString(0), Encoders.STRING())
        .mapGroupsWithState(f, Encoders.bean(Seen.class), Encoders.LONG(), GroupStateTimeout.NoTimeout()), "update", ck);
  }
  public static void kryo(SparkSession spark, String in, String ck) throws Exception {
    FlatMapGroupsWithStateFunction<String, Row, Seen, Long> f = (key, it, state) -> {
      Seen seen = state.exists() ? state.get() : new Seen();
      while (it.hasNext()) { it.next(); seen.setCount(seen.getCount() + 1); }
      state.update(seen);
      state.setTimeoutTimestamp(4102444800000L);
      return Collections.singletonList(seen.getCount()).iterator();
    };
    go(rows(spark, in).withWatermark("t", "15 minutes").groupByKey((MapFunction<Row, String>) r -> r.getString(0), Encoders.STRING())
        .flatMapGroupsWithState(f, OutputMode.Update(), Encoders.kryo(Seen.class), Encoders.LONG(), GroupStateTimeout.EventTimeTimeout()), "update", ck);
  }
}
